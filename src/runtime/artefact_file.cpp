#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>

#include "runtime/artefact_parts.h"
#include "support/hash.h"
#include "support/process.h"

namespace heddle::runtime {
namespace {

constexpr char kMagic[8] = {'H', 'E', 'D', 'D', 'L', 'E', '\n', '\x1a'};
constexpr std::uint64_t kMaxManifest = 256u << 20;
constexpr std::uint64_t kMaxSections = 1u << 20;
constexpr std::uint64_t kLine = 64;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t sections;
  std::uint64_t manifest_bytes;
  std::uint64_t checksum_low, checksum_high;  ///< of manifest and section table
};
static_assert(sizeof(Header) == 40 && sizeof(Section) == 32);

std::uint64_t lines(std::uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// Header, manifest and table as they are in the file; `parts` views `text`.
struct Head {
  std::string text;
  Parts parts;
};

/// Reads no section, and no more than a sound header says.
Result<Head> head_of(const File& file) {
  Head head;
  head.text.resize(std::min(file.size(), sizeof(Header)));
  HEDDLE_TRY(file.read(head.text.data(), 0, head.text.size()));
  if (file.size() >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, head.text.data(), sizeof header);
    const std::uint64_t rest =
        std::min(header.manifest_bytes, kMaxManifest) +
        std::min<std::uint64_t>(header.sections, kMaxSections) * sizeof(Section);
    head.text.resize(std::min<std::uint64_t>(file.size(), sizeof header + rest));
    HEDDLE_TRY(file.read(head.text.data(), 0, head.text.size()));
  }
  head.parts = HEDDLE_TRY(split(reinterpret_cast<const std::byte*>(head.text.data()), file.size()));
  return head;
}

/// A copy on huge pages.
Result<FileBytes> read_sections(const File& file, std::size_t bytes) {
  const auto machine = static_cast<std::size_t>(machine_memory());
  if (bytes > machine)
    return fail(ErrorCode::out_of_memory, "the program takes {} MB, the machine has {}",
                bytes >> 20, machine >> 20);
  try {
    const auto copy = std::make_shared<Tensor>(Tensor::workspace(static_cast<std::int64_t>(bytes)));
    HEDDLE_TRY(file.read(copy->mutable_data(), 0, bytes));
    return FileBytes{copy->data(), bytes, copy};
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::out_of_memory, "no memory for {} MB of the program", bytes >> 20);
  }
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

Result<FileBytes> artefact_bytes(const std::string& path) {
  const File file = HEDDLE_TRY(File::open(path));
  const auto of_file = [&]() -> Result<FileBytes> {
    const Head head = HEDDLE_TRY(head_of(file));
    // What goes to a device once may leave memory again.
    if (head.parts.manifest.find("\"device\":\"cuda") != std::string_view::npos) return file.map();
    std::uint64_t end = head.text.size();
    for (const Section& s : head.parts.sections) end = std::max(end, s.offset + s.bytes);
    return read_sections(file, end);
  };
  Result<FileBytes> read = of_file();
  if (!read) return fail(read.error().code, "{}: {}", path, read.error().message);
  return read;
}

Result<std::string> read_manifest(const std::string& path) {
  const File file = HEDDLE_TRY(File::open(path));
  const Result<Head> head = head_of(file);
  if (!head) return fail(head.error().code, "{}: {}", path, head.error().message);
  return std::string(head->parts.manifest);
}

bool is_artefact(const std::string& path) {
  std::error_code ignored;  // a pipe would be waited for
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  char magic[sizeof kMagic] = {};
  return file.read(magic, sizeof magic) && std::memcmp(magic, kMagic, sizeof kMagic) == 0;
}

Status write_file(const std::string& manifest, const std::vector<std::string_view>& bodies,
                  const std::string& path) {
  std::vector<Section> sections;
  std::uint64_t offset = lines(sizeof(Header) + manifest.size() + bodies.size() * sizeof(Section));
  for (std::string_view body : bodies) {
    const Hash hash = hash_bytes(body);
    sections.push_back({offset, body.size(), hash.low, hash.high});
    // Whole lines keep vector loads aligned; neighbours begin at different places of their pages.
    constexpr std::uint64_t kPage = 4096, kApart = 5 * kLine;
    offset += lines(body.size()) + (body.size() >= kPage ? kApart : 0);
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

}  // namespace heddle::runtime
