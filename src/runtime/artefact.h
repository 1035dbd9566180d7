#pragma once
#include <string>

#include "runtime/program.h"
#include "support/result.h"

namespace heddle::runtime {

/// Version of the file format; a file of another version is refused.
constexpr std::uint32_t kArtefactVersion = 5;

/// Writes `program` to `path` (atomically: a temporary file, then rename). Layout: a fixed header
/// (magic, version, manifest and table sizes), the JSON manifest, a table of sections (kind,
/// offset, size, XXH3 checksum), then sections from lines of 64 bytes on: object code and
/// constants.
Status write_artefact(const Program& program, const std::string& path);

/// Constants stay where the file is read to, on huge pages; a GPU's in the mapped file. Everything
/// is checked before it is believed: the error says what was found and what was wanted.
Result<Program> read_artefact(const std::string& path);
enum class Checksums { compared, ignored };
/// The same from memory that `owner` keeps alive. Fuzzing ignores checksums, to reach what is
/// behind.
Result<Program> parse_artefact(const std::byte* data, std::size_t size,
                               std::shared_ptr<const void> owner,
                               Checksums checksums = Checksums::compared);
/// The manifest alone, without checking sections.
Result<std::string> read_manifest(const std::string& path);
/// True if the file starts like an artefact.
bool is_artefact(const std::string& path);

}  // namespace heddle::runtime
