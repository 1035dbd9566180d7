#include "runtime/artefact.h"

#include <numeric>

#include "runtime/artefact_parts.h"
#include "support/hash.h"
#include "support/json.h"

namespace heddle::runtime {
namespace {

using nlohmann::json;

Status check_section(const std::byte* data, const Section& s, std::size_t index) {
  const Hash hash = hash_bytes(view_of(data + s.offset, s.bytes));
  if (hash.low != s.checksum_low || hash.high != s.checksum_high)
    return fail("artefact: damaged: section {} does not match its checksum", index);
  return Ok{};
}

}  // namespace

std::string_view view_of(const void* data, std::size_t size) {
  return {static_cast<const char*>(data), size};
}

Result<Tensor> tensor_of(const json& j, const Section& s, const std::byte* data,
                         const std::shared_ptr<const void>& owner) {
  const Tensor tensor(HEDDLE_TRY(type_from(j)), owner, data + s.offset);
  if (tensor.bytes() != static_cast<std::int64_t>(s.bytes))
    return fail("artefact: a constant is {} bytes, want {}", s.bytes, tensor.bytes());
  return tensor;
}

Status write_artefact(const Program& program, const std::string& path) {
  std::vector<std::string_view> bodies;
  for (const std::string& object : program.objects) bodies.push_back(object);
  for (const Tensor& c : program.constants) bodies.push_back(c.view());
  return write_file(manifest_json(program).dump(), bodies, path);
}

Result<Program> program_of(const json& j, const Numbers& numbers, const Parts& parts,
                           const std::byte* data, const std::shared_ptr<const void>& owner) {
  Program program;
  const std::size_t objects = j.at("objects").get<std::size_t>();
  const json& constants = j.at("constants");
  if (objects > numbers.size() || objects + constants.size() != numbers.size())
    return fail("artefact: found {} sections, want {} objects and {} constants", numbers.size(),
                objects, constants.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] >= parts.sections.size())
      return fail("artefact: found section {} of {}", numbers[i], parts.sections.size());
    const Section& s = parts.sections[numbers[i]];
    if (i < objects) {
      program.objects.emplace_back(view_of(data + s.offset, s.bytes));
      continue;
    }
    program.constants.push_back(HEDDLE_TRY(tensor_of(constants.at(i - objects), s, data, owner)));
  }
  return program_from(j, std::move(program));
}

Result<json> manifest_of(const Parts& parts, const std::byte* data, std::string_view format,
                         Checksums checksums) {
  std::optional<json> j = parse_whole_json(parts.manifest);
  if (!j || !j->is_object() || !j->contains("format"))
    return fail("artefact: the manifest is not valid JSON of this format");
  if (j->at("format") != format)
    return fail("artefact: found format {}, want '{}'", j->at("format").dump(), format);
  for (std::size_t i = 0; checksums == Checksums::compared && i < parts.sections.size(); ++i)
    HEDDLE_TRY(check_section(data, parts.sections[i], i));
  return *std::move(j);
}

Result<Program> parse_artefact(const std::byte* data, std::size_t size,
                               std::shared_ptr<const void> owner, Checksums checksums) {
  const Parts parts = HEDDLE_TRY(split(data, size, checksums));
  try {
    const json j = HEDDLE_TRY(manifest_of(parts, data, kProgramFormat, checksums));
    Numbers numbers(parts.sections.size());
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    return program_of(j, numbers, parts, data, owner);
  } catch (const json::exception& e) {
    return fail("artefact: malformed manifest: {}", e.what());
  }
}

std::string format_of(const std::string& path) {
  if (!is_artefact(path)) return "";
  const Result<std::string> manifest = read_manifest(path);
  if (!manifest) return "";
  const std::optional<json> j = parse_whole_json(*manifest);
  if (!j || !j->is_object() || !j->contains("format") || !j->at("format").is_string()) return "";
  return j->at("format").get<std::string>();
}

Result<Program> read_artefact(const std::string& path) { return read_whole(path, parse_artefact); }

}  // namespace heddle::runtime
