#include "runtime/artefact.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "runtime/artefact_parts.h"
#include "support/hash.h"
#include "support/json.h"

namespace heddle::runtime {
namespace {

using nlohmann::json;

constexpr char kMagic[8] = {'H', 'E', 'D', 'D', 'L', 'E', '\n', '\x1a'};
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kMaxManifest = 256u << 20;
constexpr std::uint64_t kMaxSections = 1u << 20;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t sections;
  std::uint64_t manifest_bytes;
  std::uint64_t checksum_low, checksum_high;  ///< of manifest and section table
};
static_assert(sizeof(Header) == 40 && sizeof(Section) == 32);

std::uint64_t page_aligned(std::uint64_t offset) {
  return (offset + kPageBytes - 1) / kPageBytes * kPageBytes;
}
std::string_view view_of(const void* data, std::size_t size) {
  return {static_cast<const char*>(data), size};
}

}  // namespace

Result<Parts> split(const std::byte* data, std::size_t size, Checksums checksums) {
  Header header;
  if (size < sizeof header)
    return fail("artefact: found {} bytes, want at least {}", size, sizeof header);
  std::memcpy(&header, data, sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    return fail("artefact: the file does not start like one");
  if (header.version != kArtefactVersion)
    return fail("artefact: found version {}, want {}", header.version, kArtefactVersion);
  const std::uint64_t table_bytes = std::uint64_t{header.sections} * sizeof(Section);
  if (header.manifest_bytes > kMaxManifest || header.sections > kMaxSections ||
      sizeof header + header.manifest_bytes + table_bytes > size)
    return fail("artefact: truncated: found {} bytes, want at least {}", size,
                sizeof header + header.manifest_bytes + table_bytes);
  const char* begin = reinterpret_cast<const char*>(data) + sizeof header;
  const Hash hash = hash_bytes({begin, header.manifest_bytes + table_bytes});
  if (checksums == Checksums::compared &&
      (hash.low != header.checksum_low || hash.high != header.checksum_high))
    return fail("artefact: damaged: the manifest does not match its checksum");
  Parts parts{{begin, header.manifest_bytes}, std::vector<Section>(header.sections)};
  if (table_bytes > 0)  // an empty vector has no address to copy to
    std::memcpy(parts.sections.data(), begin + header.manifest_bytes, table_bytes);
  for (const Section& s : parts.sections)
    if (s.offset > size || s.bytes > size - s.offset || s.offset % 64 != 0)
      return fail("artefact: truncated: found {} bytes, want a section at {} of {}", size, s.offset,
                  s.bytes);
  return parts;
}

namespace {

Status check_section(const std::byte* data, const Section& s, std::size_t index) {
  const Hash hash = hash_bytes(view_of(data + s.offset, s.bytes));
  if (hash.low != s.checksum_low || hash.high != s.checksum_high)
    return fail("artefact: damaged: section {} does not match its checksum", index);
  return Ok{};
}

}  // namespace

namespace {

struct OpenFile {
  std::shared_ptr<const int> descriptor;  ///< closes it
  std::size_t bytes = 0;
};

Result<OpenFile> open_file(const std::string& path) {
  // Opening a pipe that nobody writes to would wait for ever.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return fail("{}: {}", path, std::strerror(errno));
  const std::shared_ptr<const int> descriptor(new int(fd), [](const int* d) {
    ::close(*d);
    delete d;
  });
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
    return fail("{}: found an empty or special file, want an artefact", path);
  return OpenFile{descriptor, static_cast<std::size_t>(info.st_size)};
}

}  // namespace

Result<Tensor> read_file(const std::string& path) {
  const OpenFile file = HEDDLE_TRY(open_file(path));
  Tensor bytes = Tensor::workspace(static_cast<std::int64_t>(file.bytes));
  for (std::size_t at = 0; at < file.bytes;) {
    const ssize_t count = ::read(*file.descriptor, bytes.mutable_data() + at, file.bytes - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail("{}: {}", path, std::strerror(errno));
    if (count == 0) return fail("{}: cut while it was read", path);
    at += static_cast<std::size_t>(count);
  }
  return bytes;
}

Result<Tensor> tensor_of(const json& j, const Section& s, const std::byte* data,
                         const std::shared_ptr<const void>& owner) {
  const Tensor tensor(HEDDLE_TRY(type_from(j)), owner, data + s.offset);
  if (tensor.bytes() != static_cast<std::int64_t>(s.bytes))
    return fail("artefact: a constant is {} bytes, want {}", s.bytes, tensor.bytes());
  return tensor;
}

std::string_view bytes_of(const Tensor& t) {
  return view_of(t.data(), static_cast<std::size_t>(t.bytes()));
}

Status write_file(const std::string& manifest, const std::vector<std::string_view>& bodies,
                  const std::string& path) {
  std::vector<Section> sections;
  std::uint64_t offset =
      page_aligned(sizeof(Header) + manifest.size() + bodies.size() * sizeof(Section));
  for (std::string_view body : bodies) {
    const Hash hash = hash_bytes(body);
    sections.push_back({offset, body.size(), hash.low, hash.high});
    // Small sections share pages; 64 bytes keep vector loads aligned.
    offset += (body.size() + 63) / 64 * 64;
    if (body.size() >= kPageBytes) offset = page_aligned(offset);
  }
  std::string table =
      manifest + std::string(view_of(sections.data(), sections.size() * sizeof(Section)));
  const Hash hash = hash_bytes(table);
  Header header{
      {},       kArtefactVersion, static_cast<std::uint32_t>(sections.size()), manifest.size(),
      hash.low, hash.high};
  std::memcpy(header.magic, kMagic, sizeof kMagic);

  static std::atomic<int> unique = 0;  // threads may write the same artefact
  const std::string temporary = fmt::format("{}.{}.{}.tmp", path, ::getpid(), unique++);
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.write(table.data(), static_cast<std::streamsize>(table.size()));
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    file.seekp(static_cast<std::streamoff>(sections[i].offset));
    file.write(bodies[i].data(), static_cast<std::streamsize>(bodies[i].size()));
  }
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) {
    std::filesystem::remove(temporary, error);
    return fail("{}: cannot write the artefact", path);
  }
  return Ok{};
}

Status write_artefact(const Program& program, const std::string& path) {
  std::vector<std::string_view> bodies;
  for (const std::string& object : program.objects) bodies.push_back(object);
  for (const Tensor& c : program.constants) bodies.push_back(bytes_of(c));
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

Result<std::string> read_manifest(const std::string& path) {
  const OpenFile file = HEDDLE_TRY(open_file(path));
  // Mapped, as sections are not touched.
  void* memory = ::mmap(nullptr, file.bytes, PROT_READ, MAP_PRIVATE, *file.descriptor, 0);
  if (memory == MAP_FAILED) return fail("{}: cannot map: {}", path, std::strerror(errno));
  const std::shared_ptr<const void> unmap(memory,
                                          [&](const void*) { ::munmap(memory, file.bytes); });
  const Parts parts = HEDDLE_TRY(split(static_cast<const std::byte*>(memory), file.bytes));
  return std::string(parts.manifest);
}

bool is_artefact(const std::string& path) {
  std::error_code ignored;  // a pipe would be waited for
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  char magic[sizeof kMagic] = {};
  return file.read(magic, sizeof magic) && std::memcmp(magic, kMagic, sizeof kMagic) == 0;
}

}  // namespace heddle::runtime
