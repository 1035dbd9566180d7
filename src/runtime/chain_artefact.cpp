// Artefacts of programs that run one after another.
#include "runtime/artefact_parts.h"
#include "runtime/chain.h"

namespace heddle::runtime {

using nlohmann::json;

namespace {

constexpr const char* kChainFormat = "heddle chain";

json link_json(const Chain::Link& link, SectionTable& sections) {
  json j = sized_json(link.programs, sections);
  j["counts"] = j["made"] = json::array();
  for (const Chain::Count& count : link.counts)
    j["counts"].push_back({count.name, count.value, count.axis});
  for (const Chain::Made& made : link.made)
    j["made"].push_back({made.name, made.port, made.extents});
  return j;
}

bool tells_extent(const Port& port) { return port.type.shape.empty() && is_int(port.type.dtype); }

/// Ports are there and have such axes; extents are told by whole numbers.
bool fits(const std::vector<Port>& ports, std::size_t port,
          const std::vector<std::pair<int, std::size_t>>& extents) {
  if (port >= ports.size()) return false;
  for (const auto& [axis, other] : extents)
    if (axis < 0 || static_cast<std::size_t>(axis) >= ports[port].type.shape.size() ||
        other >= ports.size() || !tells_extent(ports[other]))
      return false;
  return true;
}

using Types = std::map<std::string, std::pair<DType, std::size_t>>;  ///< and rank

Error misfit(std::size_t link) {
  return fail("artefact: link {} does not fit what is before it", link);
}

/// What the link reads is there; notes what it makes.
Status check_link(const Chain::Link& link, std::size_t number, Types& there) {
  std::set<std::string> counts;
  for (const Chain::Count& count : link.counts) {
    const auto found = there.find(count.value);
    if (found == there.end() || !counts.insert(count.name).second) return misfit(number);
    const auto [type, rank] = found->second;
    if (count.axis < 0 ? (!is_int(type) && type != DType::b1) || rank > 1 || count.axis != -1
                       : static_cast<std::size_t>(count.axis) >= rank)
      return misfit(number);
  }
  const SizedProgram& sized = link.programs;
  const std::size_t outputs = sized.programs[0]->outputs.size();
  for (const SizeCase& row : sized.cases) {
    const Program& program = *sized.programs[row.program];
    if (program.outputs.size() != outputs) return misfit(number);
    for (std::size_t i = 0; i < row.inputs.size(); ++i) {
      const auto found = there.find(program.inputs[i].name);
      if (found == there.end() ||
          found->second != std::pair{program.inputs[i].type.dtype, row.inputs[i].size()})
        return misfit(number);
    }
    for (const Chain::Made& made : link.made)
      if (!fits(program.outputs, made.port, made.extents)) return misfit(number);
  }
  for (const Chain::Made& made : link.made) {
    const TensorType& type = sized.programs[0]->outputs[made.port].type;
    for (const auto& program : sized.programs)
      if (program->outputs.size() != outputs ||
          program->outputs[made.port].type.dtype != type.dtype ||
          program->outputs[made.port].type.shape.size() != type.shape.size())
        return misfit(number);
    there[made.name] = {type.dtype, type.shape.size()};
  }
  return Ok{};
}

Result<Chain> chain_from(const json& j, const Parts& parts, const std::byte* data,
                         const std::shared_ptr<const void>& owner) {
  Chain chain;
  Types there;
  for (const json& port : j.at("inputs")) {
    chain.inputs.push_back({port.at("name").get<std::string>(), HEDDLE_TRY(type_from(port))});
    const TensorType& type = chain.inputs.back().type;
    there[chain.inputs.back().name] = {type.dtype, type.shape.size()};
  }
  for (const json& port : j.at("outputs"))
    chain.outputs.push_back({port.at("name").get<std::string>(), HEDDLE_TRY(type_from(port))});
  for (const json& entry : j.at("links")) {
    Chain::Link link{HEDDLE_TRY(sized_from(entry, parts, data, owner)), {}, {}};
    for (const json& count : entry.at("counts"))
      link.counts.push_back(
          {count.at(0).get<std::string>(), count.at(1).get<std::string>(), count.at(2).get<int>()});
    for (const json& made : entry.at("made"))
      link.made.push_back({made.at(0).get<std::string>(), made.at(1).get<std::size_t>(),
                           made.at(2).get<std::vector<std::pair<int, std::size_t>>>()});
    HEDDLE_TRY(check_link(link, chain.links.size(), there));
    chain.links.push_back(std::move(link));
  }
  for (const json& entry : j.at("results")) {
    Chain::Output result{entry.at(0).get<std::string>(), entry.at(1).get<std::size_t>(),
                         entry.at(2).get<std::vector<std::pair<int, std::size_t>>>()};
    const auto found = there.find(result.value);
    if (!fits(chain.outputs, result.port, result.extents) || found == there.end() ||
        found->second != std::pair{chain.outputs[result.port].type.dtype,
                                   chain.outputs[result.port].type.shape.size()})
      return fail("artefact: an output does not fit what makes it");
    chain.results.push_back(std::move(result));
  }
  if (chain.links.empty()) return fail("artefact: the chain is empty");
  return chain;
}

}  // namespace

Status write_chain_artefact(const Chain& chain, const std::string& path) {
  SectionTable sections;
  json j = {{"format", kChainFormat}};
  j["inputs"] = j["outputs"] = j["links"] = j["results"] = json::array();
  for (const Port& port : chain.inputs) j["inputs"].push_back(port_json(port));
  for (const Port& port : chain.outputs) j["outputs"].push_back(port_json(port));
  for (const Chain::Link& link : chain.links) j["links"].push_back(link_json(link, sections));
  for (const Chain::Output& result : chain.results)
    j["results"].push_back({result.value, result.port, result.extents});
  return write_file(j.dump(), sections.bodies(), path);
}

Result<Chain> parse_chain_artefact(const std::byte* data, std::size_t size,
                                   std::shared_ptr<const void> owner, Checksums checksums) {
  const Parts parts = HEDDLE_TRY(split(data, size, checksums));
  try {
    return chain_from(HEDDLE_TRY(manifest_of(parts, data, kChainFormat, checksums)), parts, data,
                      owner);
  } catch (const json::exception& e) {
    return fail("artefact: malformed manifest: {}", e.what());
  }
}

Result<Chain> read_chain_artefact(const std::string& path) {
  return read_whole(path, parse_chain_artefact);
}

bool is_chain_artefact(const std::string& path) { return format_of(path) == kChainFormat; }

}  // namespace heddle::runtime
