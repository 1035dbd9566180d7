// Artefacts of several sizes.
#include "runtime/artefact_parts.h"
#include "runtime/sized.h"
#include "support/hash.h"

namespace heddle::runtime {

using nlohmann::json;

namespace {

constexpr const char* kSizedFormat = "heddle sizes";

json case_json(const SizeCase& row) {
  return {{"sizes", row.sizes},
          {"program", row.program},
          {"inputs", row.inputs},
          {"outputs", row.outputs},
          {"given", row.given}};
}

json facts_json(const DimensionFacts& facts) {
  json j = json::object();
  for (const auto& [name, expr] : facts) j[name] = expr.text();
  return j;
}

/// The names of dimensions, and what follows from others; files without have none.
Status names_from(const json& j, SizedProgram& sized) {
  if (!j.contains("dimensions")) return Ok{};
  sized.dimensions = j.at("dimensions").get<std::vector<std::vector<std::string>>>();
  const std::vector<Shape>& inputs = sized.cases[0].inputs;
  bool sound = sized.dimensions.size() == inputs.size();
  for (std::size_t i = 0; sound && i < inputs.size(); ++i)
    sound = sized.dimensions[i].size() == inputs[i].size();
  for (const auto& [name, text] : j.at("facts").get<std::map<std::string, std::string>>()) {
    const auto expr = DimensionExpr::parse(text);
    sound &= expr.has_value();
    if (expr) sized.facts.emplace(name, *expr);
  }
  if (!sound) return fail("artefact: the names of dimensions do not fit the inputs");
  return check_facts(sized.facts);
}

/// The shapes of a case fit the ports of its program.
bool fits(const std::vector<Shape>& shapes, const std::vector<Port>& ports) {
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Shape& whole = ports[i].type.shape;
    if (shapes[i].size() != whole.size()) return false;
    for (std::size_t d = 0; d < whole.size(); ++d)
      if (shapes[i][d] < 0 || shapes[i][d] > whole[d]) return false;
  }
  return true;
}

Result<SizeCase> case_from(const json& j, const SizedProgram& sized) {
  SizeCase row;
  row.sizes = j.at("sizes").get<std::map<std::string, std::int64_t>>();
  row.program = j.at("program").get<std::size_t>();
  row.inputs = j.at("inputs").get<std::vector<Shape>>();
  row.outputs = j.at("outputs").get<std::vector<Shape>>();
  row.given = j.at("given").get<std::vector<std::size_t>>();
  if (row.program >= sized.programs.size())
    return fail("artefact: found program {} of {}", row.program, sized.programs.size());
  const Program& p = *sized.programs[row.program];
  bool sound = row.inputs.size() + row.given.size() == p.inputs.size() &&
               row.outputs.size() == p.outputs.size() && fits(row.inputs, p.inputs) &&
               fits(row.outputs, p.outputs);
  for (std::size_t i = 0; sound && i < row.given.size(); ++i)
    sound = row.given[i] < sized.values.size() &&
            sized.values[row.given[i]].type() == p.inputs[row.inputs.size() + i].type;
  if (!sound) return fail("artefact: a row of the dispatch table does not fit its program");
  return row;
}

}  // namespace

json sized_json(const SizedProgram& sized, SectionTable& sections) {
  json j = json::object();
  j["programs"] = j["values"] = j["cases"] = json::array();
  for (const auto& program : sized.programs) {
    json entry = manifest_json(*program);
    entry["sections"] = json::array();
    for (const std::string& object : program->objects)
      entry["sections"].push_back(sections.add(object));
    for (const Tensor& c : program->constants) entry["sections"].push_back(sections.add(c.view()));
    j["programs"].push_back(std::move(entry));
  }
  for (const Tensor& v : sized.values)
    j["values"].push_back(
        {{"dtype", name_of(v.dtype())}, {"shape", v.shape()}, {"section", sections.add(v.view())}});
  for (const SizeCase& row : sized.cases) j["cases"].push_back(case_json(row));
  if (!sized.dimensions.empty()) {
    j["dimensions"] = sized.dimensions;
    j["facts"] = facts_json(sized.facts);
  }
  return j;
}

Result<SizedProgram> sized_from(const json& j, const Parts& parts, const std::byte* data,
                                const std::shared_ptr<const void>& owner) {
  SizedProgram sized;
  for (const json& entry : j.at("programs"))
    sized.programs.push_back(std::make_shared<const Program>(
        HEDDLE_TRY(program_of(entry, entry.at("sections").get<Numbers>(), parts, data, owner))));
  for (const json& entry : j.at("values")) {
    const auto number = entry.at("section").get<std::size_t>();
    if (number >= parts.sections.size())
      return fail("artefact: found section {} of {}", number, parts.sections.size());
    sized.values.push_back(HEDDLE_TRY(tensor_of(entry, parts.sections[number], data, owner)));
  }
  for (const json& entry : j.at("cases"))
    sized.cases.push_back(HEDDLE_TRY(case_from(entry, sized)));
  if (sized.cases.empty()) return fail("artefact: the dispatch table is empty");
  HEDDLE_TRY(names_from(j, sized));
  return sized;
}

std::size_t SectionTable::add(std::string_view body) {
  const Hash hash = hash_bytes(body);
  const auto [at, fresh] = known_.try_emplace({hash.low, hash.high}, bodies_.size());
  if (fresh) bodies_.push_back(body);
  return at->second;
}

Status write_sized_artefact(const SizedProgram& sized, const std::string& path) {
  SectionTable sections;
  json j = sized_json(sized, sections);
  j["format"] = kSizedFormat;
  return write_file(j.dump(), sections.bodies(), path);
}

Result<SizedProgram> parse_sized_artefact(const std::byte* data, std::size_t size,
                                          std::shared_ptr<const void> owner, Checksums checksums) {
  const Parts parts = HEDDLE_TRY(split(data, size, checksums));
  try {
    return sized_from(HEDDLE_TRY(manifest_of(parts, data, kSizedFormat, checksums)), parts, data,
                      owner);
  } catch (const json::exception& e) {
    return fail("artefact: malformed manifest: {}", e.what());
  }
}

Result<SizedProgram> read_sized_artefact(const std::string& path) {
  return read_whole(path, parse_sized_artefact);
}

bool is_sized_artefact(const std::string& path) { return format_of(path) == kSizedFormat; }

}  // namespace heddle::runtime
