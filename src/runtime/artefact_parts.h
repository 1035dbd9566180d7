#pragma once
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/artefact.h"
#include "support/file.h"

/// What files of one program, of several sizes and of chains have in common.
namespace heddle::runtime {

struct Section {
  std::uint64_t offset, bytes, checksum_low, checksum_high;
};
struct Parts {
  std::string_view manifest;
  std::vector<Section> sections;
};
/// Section numbers of a program's objects, then its constants.
using Numbers = std::vector<std::size_t>;
/// The bytes of sections; what is there already is not added again.
class SectionTable {
 public:
  std::size_t add(std::string_view body);
  const std::vector<std::string_view>& bodies() const { return bodies_; }

 private:
  std::vector<std::string_view> bodies_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> known_;
};

/// Of a file whose header and table are sound. A CPU's lie on huge pages, from which memory is read
/// up to 1.6 times as fast as from a mapped file's, a GPU's in the mapped file.
Result<FileBytes> artefact_bytes(const std::string& path);
/// What `parse` makes of a file; its errors with the path.
template <class T>
Result<T> read_whole(const std::string& path,
                     Result<T> (*parse)(const std::byte*, std::size_t, std::shared_ptr<const void>,
                                        Checksums)) {
  const FileBytes file = HEDDLE_TRY(artefact_bytes(path));
  Result<T> read = parse(file.data, file.size, file.owner, Checksums::compared);
  if (!read) return fail(read.error().code, "{}: {}", path, read.error().message);
  return read;
}
/// Header, manifest and table, all within the file and with the right checksum.
Result<Parts> split(const std::byte* data, std::size_t size,
                    Checksums checksums = Checksums::compared);
/// The manifest, once every section matches its checksum.
Result<nlohmann::json> manifest_of(const Parts& parts, const std::byte* data,
                                   std::string_view format, Checksums checksums);
/// Header, manifest, table and sections, one for each body.
Status write_file(const std::string& manifest, const std::vector<std::string_view>& bodies,
                  const std::string& path);

/// "format" of one program's manifest.
constexpr const char* kProgramFormat = "heddle";
nlohmann::json port_json(const Port& port);
nlohmann::json manifest_json(const Program& p);
nlohmann::json layout_json(const StageLayout& layout);
Result<StageLayout> layout_from(const nlohmann::json& j);
/// That it is for a program of these stages.
Status check_layout(const Program& p, const StageLayout& layout);
std::string_view view_of(const void* data, std::size_t size);
Result<TensorType> type_from(const nlohmann::json& j);
/// Fills in what the manifest says; constants and objects are in `p` already.
Result<Program> program_from(const nlohmann::json& j, Program p);
/// A tensor of the type that the manifest tells, over a section.
Result<Tensor> tensor_of(const nlohmann::json& j, const Section& s, const std::byte* data,
                         const std::shared_ptr<const void>& owner);
/// A program whose bytes are these sections.
Result<Program> program_of(const nlohmann::json& j, const Numbers& numbers, const Parts& parts,
                           const std::byte* data, const std::shared_ptr<const void>& owner);
struct SizedProgram;
nlohmann::json sized_json(const SizedProgram& sized, SectionTable& sections);
Result<SizedProgram> sized_from(const nlohmann::json& j, const Parts& parts, const std::byte* data,
                                const std::shared_ptr<const void>& owner);
/// The "format" of the file's manifest; empty if it is no artefact.
std::string format_of(const std::string& path);

}  // namespace heddle::runtime
