#include "runtime/artefact_parts.h"
#include "support/json.h"

namespace heddle::runtime {

using nlohmann::json;

json port_json(const Port& port) {
  return {{"name", port.name}, {"dtype", name_of(port.type.dtype)}, {"shape", port.type.shape}};
}

namespace {

json map_json(const TensorMap& map) {
  return {{"arg", map.arg},         {"dtype", name_of(map.dtype)},
          {"extents", map.extents}, {"strides", map.strides},
          {"box", map.box},         {"swizzle", map.swizzle_bytes}};
}

/// Empty for the CPU, where a phase has no launch shape.
json grid_json(const Grid& grid) {
  if (grid == Grid{}) return json::object();
  json maps = json::array();
  for (const TensorMap& map : grid.maps) maps.push_back(map_json(map));
  json j = {{"threads", grid.threads},         {"shared", grid.shared_bytes},
            {"cluster", grid.cluster},         {"resident", grid.resident},
            {"cooperative", grid.cooperative}, {"maps", maps}};
  if (grid.function >= 0) j["function"] = grid.function;
  for (const Paged& p : grid.paged) j["paged"].push_back({p.arg, p.begin, p.step, p.bytes});
  return j;
}

json matrix_json(const LibraryProduct::Matrix& m) {
  return {m.argument, m.start, m.batch, m.row, m.column};
}

json product_json(const LibraryProduct& p) {
  return {{"types", {name_of(p.operands), name_of(p.result)}},
          {"extents", {p.batches, p.rows, p.columns, p.depth}},
          {"lhs", matrix_json(p.lhs)},
          {"rhs", matrix_json(p.rhs)},
          {"out", matrix_json(p.out)},
          {"bias", {p.bias, p.bias_start}},
          {"relu", p.relu},
          {"tf32", p.tf32}};
}

json unit_json(const UnitProduct& u) {
  json matrices = json::array();
  for (const UnitProduct::Matrix& m : u.matrices)
    matrices.push_back({m.argument, m.offset, m.batch, m.row, m.column});
  return {{"object", u.object},
          {"name", u.name},
          {"extents", {u.batches, u.rows, u.columns, u.depth}},
          {"matrices", matrices}};
}

json touches_json(const std::vector<Touch>& touches) {
  json out = json::array();
  for (const Touch& t : touches) out.push_back({t.arg, t.write, t.shares});
  return out;
}

json launch_json(const Launch& launch) {
  json args = json::array(), phases = json::array();
  for (const Slot& slot : launch.args) args.push_back({static_cast<int>(slot.kind), slot.index});
  for (const Phase& phase : launch.phases)
    phases.push_back(
        {phase.symbol, phase.tasks, grid_json(phase.grid), touches_json(phase.touches)});
  json out = {{"name", launch.name},
              {"args", args},
              {"phases", phases},
              {"ns", std::llround(1e9 * launch.seconds)}};
  if (launch.product) out["product"] = product_json(*launch.product);
  if (launch.unit) out["unit"] = unit_json(*launch.unit);
  return out;
}

}  // namespace

json manifest_json(const Program& p) {
  json j = {{"format", kProgramFormat},
            {"arena_bytes", p.arena_bytes},
            {"scratch_bytes", p.scratch_bytes},
            {"threads", p.threads},
            {"device", p.device},
            {"objects", p.objects.size()},
            {"inputs", json::array()},
            {"outputs", json::array()},
            {"launches", json::array()},
            {"constants", json::array()}};
  for (const Port& port : p.inputs) j["inputs"].push_back(port_json(port));
  for (const Port& port : p.outputs) j["outputs"].push_back(port_json(port));
  for (const Launch& launch : p.launches) j["launches"].push_back(launch_json(launch));
  for (const Tensor& c : p.constants)
    j["constants"].push_back({{"dtype", name_of(c.dtype())}, {"shape", c.shape()}});
  if (p.persistent)
    j["persistent"] = {
        {"symbol", p.persistent->symbol},
        {"threads", p.persistent->threads},
        {"blocks", p.persistent->blocks},
        {"shared", p.persistent->shared_bytes},
        {"ring", {p.persistent->ring.pages, p.persistent->ring.page_bytes, p.persistent->ring.at}}};
  if (p.monolith) j["monolith"] = layout_json(*p.monolith);
  if (p.denormals) j["denormals"] = true;
  j["info"] = p.manifest;
  return j;
}

Result<TensorType> type_from(const json& j) {
  const auto dtype = dtype_named(j.at("dtype").get<std::string>());
  if (!dtype) return fail("artefact: found element type '{}'", j.at("dtype").get<std::string>());
  TensorType type{*dtype, j.at("shape").get<Shape>()};
  if (!checked_element_count(type.shape, type.dtype))
    return fail("artefact: found impossible shape {}", to_string(type));
  return type;
}

namespace {

Result<Slot> slot_from(const json& j, const Program& p) {
  const int kind = j.at(0).get<int>();
  const Slot slot{static_cast<Slot::Kind>(kind), j.at(1).get<std::int64_t>()};
  if (kind < 0 || kind > 3 || slot.index < 0) return fail("artefact: found a malformed argument");
  const std::int64_t limits[] = {p.arena_bytes, static_cast<std::int64_t>(p.inputs.size()),
                                 static_cast<std::int64_t>(p.outputs.size()),
                                 static_cast<std::int64_t>(p.constants.size())};
  // An empty value may sit at the very end of the arena.
  if (slot.index > limits[kind] || (kind > 0 && slot.index == limits[kind]))
    return fail("artefact: argument {} is outside the program", slot.index);
  return slot;
}

Result<TensorMap> map_from(const json& j, std::size_t args) {
  const auto dtype = dtype_named(j.at("dtype").get<std::string>());
  if (!dtype) return fail("artefact: found element type '{}'", j.at("dtype").get<std::string>());
  TensorMap map{j.at("arg").get<int>(),
                *dtype,
                j.at("extents").get<std::vector<std::int64_t>>(),
                j.at("strides").get<std::vector<std::int64_t>>(),
                j.at("box").get<std::vector<int>>(),
                j.at("swizzle").get<int>()};
  const std::size_t rank = map.extents.size();
  if (map.arg < 0 || static_cast<std::size_t>(map.arg) >= args || rank < 1 || rank > 5 ||
      map.strides.size() != rank - 1 || map.box.size() != rank)
    return fail("artefact: found a malformed tensor map");
  return map;
}

Result<Paged> paged_from(const json& j, std::size_t args) {
  const Paged p{j.at(0).get<int>(), j.at(1).get<std::int64_t>(), j.at(2).get<std::int64_t>(),
                j.at(3).get<std::int64_t>()};
  const auto sound = [](std::int64_t n) { return n >= 0 && n <= kMaxTensorBytes; };
  if (p.arg < 0 || static_cast<std::size_t>(p.arg) >= args || !sound(p.begin) || !sound(p.step) ||
      !sound(p.bytes))
    return fail("artefact: found a malformed argument in pages");
  return p;
}

Result<Grid> grid_from(const json& j, std::size_t args) {
  if (j.empty()) return Grid{};
  Grid grid{j.at("threads").get<int>(),      j.at("shared").get<std::int64_t>(),
            j.at("cluster").get<int>(),      j.at("resident").get<bool>(),
            j.at("cooperative").get<bool>(), {},
            j.value("function", -1)};
  if (grid.threads < 1 || grid.threads > 1024 || grid.shared_bytes < 0 ||
      grid.shared_bytes > (std::int64_t{1} << 30) || grid.cluster < 1 || grid.cluster > 16)
    return fail("artefact: found a launch of {} threads, {} bytes of shared memory, clusters of {}",
                grid.threads, grid.shared_bytes, grid.cluster);
  if (grid.function < -1) return fail("artefact: found function {}", grid.function);
  for (const json& map : j.at("maps")) grid.maps.push_back(HEDDLE_TRY(map_from(map, args)));
  for (const json& p : j.value("paged", json::array()))
    grid.paged.push_back(HEDDLE_TRY(paged_from(p, args)));
  if (grid.paged.size() > kMostPaged)
    return fail("artefact: found {} arguments in pages, want {} at most", grid.paged.size(),
                kMostPaged);
  return grid;
}

Result<LibraryProduct::Matrix> matrix_from(const json& j, std::size_t args) {
  const LibraryProduct::Matrix m{j.at(0).get<int>(), j.at(1).get<std::int64_t>(),
                                 j.at(2).get<std::int64_t>(), j.at(3).get<std::int64_t>(),
                                 j.at(4).get<std::int64_t>()};
  if (m.argument < 0 || static_cast<std::size_t>(m.argument) >= args || m.start < 0 ||
      m.batch < 0 || m.row < 1 || m.column < 1 || std::min(m.row, m.column) != 1)
    return fail("artefact: found a malformed matrix");
  return m;
}

constexpr std::int64_t kMostExtent = INT32_MAX;

Result<LibraryProduct> product_from(const json& j, std::size_t args) {
  LibraryProduct p;
  for (int i : {0, 1}) {
    const auto type = dtype_named(j.at("types").at(i).get<std::string>());
    if (type != DType::f32 && type != DType::f16 && type != DType::bf16)
      return fail("artefact: found a product of type {}", j.at("types").at(i).get<std::string>());
    (i == 0 ? p.operands : p.result) = *type;
  }
  const json& extents = j.at("extents");
  p.batches = extents.at(0).get<std::int64_t>(), p.rows = extents.at(1).get<std::int64_t>();
  p.columns = extents.at(2).get<std::int64_t>(), p.depth = extents.at(3).get<std::int64_t>();
  for (std::int64_t n : {p.batches, p.rows, p.columns, p.depth})
    if (n < 1 || n > kMostExtent) return fail("artefact: found a product of extent {}", n);
  p.lhs = HEDDLE_TRY(matrix_from(j.at("lhs"), args));
  p.rhs = HEDDLE_TRY(matrix_from(j.at("rhs"), args));
  p.out = HEDDLE_TRY(matrix_from(j.at("out"), args));
  p.bias = j.at("bias").at(0).get<int>(), p.bias_start = j.at("bias").at(1).get<std::int64_t>();
  if (p.bias < -1 || p.bias >= static_cast<int>(args) || p.bias_start < 0)
    return fail("artefact: found a malformed bias");
  p.relu = j.at("relu").get<bool>(), p.tf32 = j.at("tf32").get<bool>();
  return p;
}

Result<UnitProduct> unit_from(const json& j, std::size_t args, std::size_t objects) {
  const json& extents = j.at("extents");
  UnitProduct u{j.at("object").get<int>(),
                j.at("name").get<std::string>(),
                extents.at(0).get<std::int64_t>(),
                extents.at(1).get<std::int64_t>(),
                extents.at(2).get<std::int64_t>(),
                extents.at(3).get<std::int64_t>(),
                {}};
  if (u.object < 0 || static_cast<std::size_t>(u.object) >= objects)
    return fail("artefact: found unit {} of {} objects", u.object, objects);
  for (std::int64_t n : {u.batches, u.rows, u.columns, u.depth})
    if (n < 1 || n > kMostExtent) return fail("artefact: found a product of extent {}", n);
  for (const json& one : j.at("matrices")) {
    const UnitProduct::Matrix m{one.at(0).get<int>(), one.at(1).get<std::int64_t>(),
                                one.at(2).get<std::int64_t>(), one.at(3).get<std::int64_t>(),
                                one.at(4).get<std::int64_t>()};
    if (m.argument < 0 || static_cast<std::size_t>(m.argument) >= args ||
        std::min({m.offset, m.batch, m.row, m.column}) < 0)
      return fail("artefact: found a malformed matrix of a unit");
    u.matrices.push_back(m);
  }
  return u;
}

Result<PersistentKernel> persistent_from(const json& j) {
  const json& ring = j.at("ring");
  const PersistentKernel m{
      j.at("symbol").get<std::string>(),
      j.at("threads").get<int>(),
      j.at("blocks").get<int>(),
      j.at("shared").get<std::int64_t>(),
      {ring.at(0).get<int>(), ring.at(1).get<int>(), ring.at(2).get<std::int64_t>()}};
  constexpr int kMostPages = 4096, kMostPageBytes = 1 << 20, kPageAlign = 128;
  const Ring& r = m.ring;
  if (r.pages < 0 || r.pages > kMostPages || r.page_bytes < 0 || r.page_bytes > kMostPageBytes ||
      r.at < 0 || r.at > m.shared_bytes ||
      (r.pages > 0 && (r.page_bytes < kPageAlign || r.page_bytes % kPageAlign != 0 ||
                       r.at % kPageAlign != 0 || r.end() > m.shared_bytes)))
    return fail("artefact: found a ring of {} pages of {} bytes", r.pages, r.page_bytes);
  if (m.threads < 1 || m.threads > 1024 || m.blocks < 1 || m.blocks > 32 || m.shared_bytes < 0 ||
      m.shared_bytes > (std::int64_t{1} << 30))
    return fail(
        "artefact: found a persistent kernel of {} blocks of {} threads, {} bytes of shared memory",
        m.blocks, m.threads, m.shared_bytes);
  return m;
}

/// Every phase is a stage of the persistent kernel that there is, or none is.
Status check_stages(const Program& p) {
  if (p.monolith) HEDDLE_TRY(check_layout(p, *p.monolith));
  for (const Launch& launch : p.launches)
    for (const Phase& phase : launch.phases) {
      if ((phase.grid.function >= 0) != p.persistent.has_value() ||
          (p.persistent && (phase.grid.threads > p.persistent->threads ||
                            phase.grid.shared_bytes > p.persistent->shared_bytes)))
        return fail("artefact: phase '{}' is no stage of the persistent kernel", phase.symbol);
      for (const Paged& paged : phase.grid.paged)
        if (paged.step > kMaxTensorBytes / std::max<std::int64_t>(1, phase.tasks))
          return fail("artefact: {} tasks of phase '{}' go through an argument in steps of {}",
                      phase.tasks, phase.symbol, paged.step);
    }
  return Ok{};
}

constexpr std::size_t kMostShares = 4096;
constexpr std::int64_t kMostNanoseconds = std::int64_t{1} << 50;

/// Wrong spans would order less than they must: they lie inside the memory that they are of, and
/// the code that is trusted to stay there, too, was made with them.
Result<std::vector<Touch>> touches_from(const json& j, const Launch& launch, std::int64_t tasks) {
  std::vector<Touch> touches;
  std::size_t shares = 1;
  for (const json& one : j) {
    Touch t{one.at(0).get<int>(), one.at(1).get<bool>(),
            one.at(2).get<std::vector<std::pair<std::int64_t, std::int64_t>>>()};
    bool sound = t.arg >= 0 && static_cast<std::size_t>(t.arg) < launch.args.size() &&
                 !t.shares.empty() && t.shares.size() <= kMostShares &&
                 (t.shares.size() == 1 || std::ssize(t.shares) <= tasks) &&
                 (t.shares.size() == 1 || shares == 1 || t.shares.size() == shares);
    shares = std::max(shares, t.shares.size());
    for (const auto& [begin, end] : t.shares)
      sound = sound && begin >= 0 && begin <= kMaxTensorBytes && end >= 0 && end <= kMaxTensorBytes;
    if (!sound) return fail("artefact: kernel '{}' touches what is malformed", launch.name);
    touches.push_back(std::move(t));
  }
  return touches;
}

}  // namespace

constexpr int kMostGrain = 1024;

json layout_json(const StageLayout& s) {
  json own = json::array();
  for (const StageChoice& c : s.own) own.push_back({c.grain, c.meets});
  return {{"grain", s.grain},
          {"whole_ns", std::llround(1e9 * s.whole)},
          {"depth_first", s.depth_first},
          {"barriers", s.barriers},
          {"own", own},
          {"longest_first", s.longest_first}};
}

Result<StageLayout> layout_from(const json& j) {
  StageLayout s{j.at("grain").get<int>(), 1e-9 * j.at("whole_ns").get<double>(),
                j.at("depth_first").get<bool>(), j.at("barriers").get<bool>()};
  if (s.grain < 1 || s.grain > kMostGrain || !(s.whole >= 0 && s.whole < 1e9))
    return fail("found stages of {} items a worker", s.grain);
  for (const json& c : j.value("own", json::array())) {
    s.own.push_back({c.at(0).get<int>(), c.at(1).get<std::vector<int>>()});
    if (s.own.back().grain < 0 || s.own.back().grain > kMostGrain)
      return fail("found a stage of {} items a worker", s.own.back().grain);
  }
  s.longest_first = j.value("longest_first", false);
  return s;
}

Status check_layout(const Program& p, const StageLayout& layout) {
  std::size_t stages = 0;
  for (const Launch& launch : p.launches) stages += launch.phases.size();
  if (layout.own.empty()) return Ok{};
  if (layout.own.size() != stages)
    return fail("found layouts of {} stages, want {}", layout.own.size(), stages);
  for (std::size_t s = 0; s < stages; ++s)
    for (const int before : layout.own[s].meets)
      if (before < 0 || static_cast<std::size_t>(before) >= s)
        return fail("found a barrier of stage {} behind stage {}, want an earlier one", s, before);
  return Ok{};
}

Result<Program> program_from(const json& j, Program p) {
  p.arena_bytes = j.at("arena_bytes").get<std::int64_t>();
  p.scratch_bytes = j.at("scratch_bytes").get<std::int64_t>();
  p.threads = j.at("threads").get<int>();
  p.device = j.at("device").get<std::string>();
  if (p.arena_bytes < 0 || p.arena_bytes > kMaxTensorBytes || p.scratch_bytes < 0 ||
      p.scratch_bytes > (std::int64_t{1} << 32) || p.threads < 1 || p.threads > 4096)
    return fail("artefact: found arena of {} bytes, scratch of {}, {} threads", p.arena_bytes,
                p.scratch_bytes, p.threads);
  p.denormals = j.value("denormals", false);
  if (j.contains("monolith")) p.monolith = HEDDLE_TRY(layout_from(j.at("monolith")));
  for (const json& port : j.at("inputs"))
    p.inputs.push_back({port.at("name").get<std::string>(), HEDDLE_TRY(type_from(port))});
  for (const json& port : j.at("outputs"))
    p.outputs.push_back({port.at("name").get<std::string>(), HEDDLE_TRY(type_from(port))});
  for (const json& entry : j.at("launches")) {
    Launch launch{entry.at("name").get<std::string>(), {}, {}};
    for (const json& arg : entry.at("args")) launch.args.push_back(HEDDLE_TRY(slot_from(arg, p)));
    for (const json& phase : entry.at("phases")) {
      const auto tasks = phase.at(1).get<std::int64_t>();
      launch.phases.push_back({phase.at(0).get<std::string>(), tasks,
                               HEDDLE_TRY(grid_from(phase.at(2), launch.args.size())),
                               HEDDLE_TRY(touches_from(phase.at(3), launch, tasks))});
    }
    const auto ns = entry.at("ns").get<std::int64_t>();
    if (ns < 0 || ns > kMostNanoseconds) return fail("artefact: found a kernel of {} ns", ns);
    launch.seconds = 1e-9 * static_cast<double>(ns);
    if (entry.contains("product"))
      launch.product = HEDDLE_TRY(product_from(entry.at("product"), launch.args.size()));
    if (entry.contains("unit"))
      launch.unit = HEDDLE_TRY(unit_from(entry.at("unit"), launch.args.size(), p.objects.size()));
    p.launches.push_back(std::move(launch));
  }
  if (j.contains("persistent")) p.persistent = HEDDLE_TRY(persistent_from(j.at("persistent")));
  HEDDLE_TRY(check_stages(p));
  p.manifest = j.at("info").get<std::string>();
  return p;
}

}  // namespace heddle::runtime
