#include "driver/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "support/file.h"
#include "support/json.h"

namespace heddle::driver {
namespace {

constexpr std::pair<DType, const char*> kTypes[] = {
    {DType::f32, "F32"}, {DType::f64, "F64"}, {DType::f16, "F16"}, {DType::bf16, "BF16"},
    {DType::i8, "I8"},   {DType::i16, "I16"}, {DType::i32, "I32"}, {DType::i64, "I64"},
    {DType::u8, "U8"},   {DType::u16, "U16"}, {DType::u32, "U32"}, {DType::u64, "U64"},
    {DType::b1, "BOOL"}};

const char* tag_of(DType type) {
  for (const auto& [dtype, name] : kTypes)
    if (dtype == type) return name;
  HEDDLE_CHECK(false, "type {} has no name in safetensors", name_of(type));
}

/// Writes all of it to the disk, or says why not.
Status write_file(const std::string& path, const std::string& head,
                  const std::map<std::string, Tensor>& tensors) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return fail("{}: {}", path, std::strerror(errno));
  bool good = std::fwrite(head.data(), 1, head.size(), file) == head.size();
  for (const auto& [name, t] : tensors) {
    const auto bytes = static_cast<std::size_t>(t.bytes());
    good = good && (bytes == 0 || std::fwrite(t.data(), 1, bytes, file) == bytes);
  }
  good = good && std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
  const int error = errno;
  std::fclose(file);
  if (!good) return fail("{}: {}", path, std::strerror(error));
  return Ok{};
}

Result<Tensor> tensor_at(const nlohmann::json& entry, const FileBytes& file, std::size_t start) {
  TensorType type;
  const std::string name = entry.at("dtype").get<std::string>();
  const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const auto& t) { return name == t.second; });
  if (known == std::end(kTypes)) return fail("unknown type {}", name);
  type.dtype = known->first;
  type.shape = entry.at("shape").get<Shape>();
  const auto [begin, end] = entry.at("data_offsets").get<std::pair<std::uint64_t, std::uint64_t>>();
  std::uint64_t bytes = static_cast<std::uint64_t>(size_of(type.dtype));
  for (const std::int64_t extent : type.shape)
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes))
      return fail("shape {}", heddle::to_string(type.shape));
  if (begin > end || end > file.size - start || end - begin != bytes)
    return fail("bytes {} to {} of {}, want {}", begin, end, file.size - start, bytes);
  Tensor t(type);
  if (bytes > 0) std::memcpy(t.mutable_data(), file.data + start + begin, bytes);
  return t;
}

}  // namespace

Status write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  if (tensors.contains(std::string(kSafetensorsMetadata)))
    return fail("{}: a tensor '{}': safetensors uses this name itself", path, kSafetensorsMetadata);
  nlohmann::json table = {{kSafetensorsMetadata, metadata}};
  std::int64_t offset = 0;
  for (const auto& [name, t] : tensors) {
    table[name] = {{"dtype", tag_of(t.dtype())},
                   {"shape", t.shape()},
                   {"data_offsets", {offset, offset + t.bytes()}}};
    offset += t.bytes();
  }
  std::string text = table.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data is aligned to 8 bytes
  const auto length = static_cast<std::uint64_t>(text.size());
  std::string head(8, '\0');
  std::memcpy(head.data(), &length, 8);
  const std::string part = path + ".part";
  HEDDLE_TRY(write_file(part, head + text, tensors));
  if (std::rename(part.c_str(), path.c_str()) != 0)
    return fail("{}: {}", path, std::strerror(errno));
  return Ok{};
}

Result<Safetensors> read_safetensors(const std::string& path) {
  const FileBytes file = HEDDLE_TRY(map_file(path));
  std::uint64_t length = 0;
  if (file.size < 8) return fail("{}: {} bytes, too short for safetensors", path, file.size);
  std::memcpy(&length, file.data, 8);
  if (length > file.size - 8)
    return fail("{}: table of {} bytes in a file of {}", path, length, file.size);
  const auto* text = reinterpret_cast<const char*>(file.data) + 8;
  const auto table = parse_whole_json({text, length});
  const bool ends_early = std::memchr(text, 0, length) != nullptr;  // to the parser
  if (!table || !table->is_object() || ends_early)
    return fail("{}: the table is no JSON object of whole numbers", path);
  Safetensors out;
  std::uint64_t data = 0;
  for (const auto& [name, entry] : table->items()) {
    try {
      if (name == kSafetensorsMetadata) {
        out.metadata = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      auto t = tensor_at(entry, file, 8 + length);
      if (!t) return fail("{}: tensor '{}': {}", path, name, t.error().message);
      data += static_cast<std::uint64_t>(t->bytes());
      out.tensors.emplace(name, *std::move(t));
    } catch (const nlohmann::json::exception&) {
      return fail("{}: damaged: the table's entry '{}' is {}", path, name, entry.dump());
    }
  }
  if (data != file.size - 8 - length)
    return fail("{}: damaged: {} bytes of data, its tensors have {}", path, file.size - 8 - length,
                data);
  return out;
}

}  // namespace heddle::driver
