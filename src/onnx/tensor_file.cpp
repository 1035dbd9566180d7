#include "onnx/tensor_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "onnx/protobuf.h"
#include "onnx/reader.h"
#include "ops/format.h"
#include "support/text_id.h"

namespace heddle::onnx {
namespace {

namespace fs = std::filesystem;
using ::onnx::TensorProto;

struct TypeRow {
  int onnx;
  DType type;
};
constexpr TypeRow kTypes[] = {
    {TensorProto::FLOAT, DType::f32},   {TensorProto::DOUBLE, DType::f64},
    {TensorProto::FLOAT16, DType::f16}, {TensorProto::BFLOAT16, DType::bf16},
    {TensorProto::INT8, DType::i8},     {TensorProto::INT16, DType::i16},
    {TensorProto::INT32, DType::i32},   {TensorProto::INT64, DType::i64},
    {TensorProto::UINT8, DType::u8},    {TensorProto::UINT16, DType::u16},
    {TensorProto::UINT32, DType::u32},  {TensorProto::UINT64, DType::u64},
    {TensorProto::BOOL, DType::b1},
};

/// Copies one of the typed fields, which hold one element per entry, narrow types widened.
template <class Field>
void copy_field(const Field& field, Tensor& tensor) {
  const bool half = tensor.dtype() == DType::f16 || tensor.dtype() == DType::bf16;
  for (int i = 0; i < field.size(); ++i) {
    if (half)  // the bits, in an int32
      tensor.as_mutable<std::uint16_t>()[static_cast<std::size_t>(i)] =
          static_cast<std::uint16_t>(field.Get(i));
    else if constexpr (std::is_floating_point_v<std::decay_t<decltype(field.Get(0))>>)
      tensor.set(i, field.Get(i));
    else
      tensor.set_int(i, static_cast<std::int64_t>(field.Get(i)));
  }
}

Status copy_bytes(const std::string& name, const void* data, std::size_t size, Tensor& tensor) {
  if (static_cast<std::int64_t>(size) != tensor.bytes())
    return fail("tensor '{}': found {} bytes, want {} for {}", name, size, tensor.bytes(),
                to_string(tensor.type()));
  if (size > 0) std::memcpy(tensor.mutable_data(), data, size);
  if (tensor.dtype() == DType::b1)  // anything but 0 is true
    for (std::uint8_t& value : tensor.as_mutable<std::uint8_t>()) value = value != 0;
  return Ok{};
}

/// The file a tensor's external data lies in, if that is inside `folder`.
Result<fs::path> external_path(const std::string& folder, const std::string& location) {
  if (folder.empty())
    return fail("external data '{}': the model has no folder to look in", location);
  const fs::path relative(location);
  if (location.empty() || relative.is_absolute())
    return fail("external data: found location '{}', want a path under the model's folder",
                location);
  std::error_code error;
  const fs::path base = fs::canonical(folder, error);
  if (error) return fail("external data: {}: {}", folder, error.message());
  const fs::path file = fs::canonical(base / relative, error);
  if (error) return fail("external data '{}': {}", location, error.message());
  const fs::path inside = file.lexically_relative(base);
  if (inside.empty() || *inside.begin() == "..")
    return fail("external data '{}': it lies outside the model's folder", location);
  return file;
}

/// A decimal entry of external_data, which files may leave out.
Result<std::uint64_t> decimal(const TensorProto& proto, const std::string& key,
                              const std::string& text) {
  if (text.empty() || text.size() > 15 || text.find_first_not_of("0123456789") != std::string::npos)
    return fail("tensor '{}': external data has {} '{}', want a number", proto.name(), key, text);
  return std::stoull(text);
}

/// `size` bytes: a tensor over them where they can stay, a copy where they cannot.
Result<Tensor> over_bytes(const TensorProto& proto, const TensorType& type,
                          const std::shared_ptr<const void>& owner, const void* data,
                          std::size_t size) {
  const auto want = static_cast<std::size_t>(element_count(type.shape) * size_of(type.dtype));
  if (size != want)
    return fail("tensor '{}': found {} bytes, want {} for {}", proto.name(), size, want,
                to_string(type));
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(size_of(type.dtype)) ==
      0;
  if (owner && aligned && size > 0 && type.dtype != DType::b1)
    return Tensor(type, owner, static_cast<const std::byte*>(data));
  Tensor tensor(type);
  HEDDLE_TRY(copy_bytes(proto.name(), data, size, tensor));
  return tensor;
}

Result<Tensor> external_tensor(const TensorProto& proto, const TensorType& type,
                               TensorSource& source) {
  std::string location;
  std::uint64_t offset = 0;
  const auto bytes = static_cast<std::uint64_t>(element_count(type.shape) * size_of(type.dtype));
  for (const auto& entry : proto.external_data()) {
    if (entry.key() == "location") location = entry.value();
    if (entry.key() == "offset") offset = HEDDLE_TRY(decimal(proto, "offset", entry.value()));
    if (entry.key() == "length") {
      const std::uint64_t length = HEDDLE_TRY(decimal(proto, "length", entry.value()));
      if (length != bytes)
        return fail("tensor '{}': external data has length {}, want {} for {}", proto.name(),
                    length, bytes, to_string(type));
    }
  }
  auto found = source.files.find(location);
  if (found == source.files.end()) {
    const fs::path path = HEDDLE_TRY(external_path(source.folder, location));
    found = source.files.emplace(location, HEDDLE_TRY(map_file(path.string()))).first;
  }
  const FileBytes& file = found->second;
  if (offset > file.size || bytes > file.size - offset)
    return fail("tensor '{}': external data '{}' has {} bytes, want {} at {}", proto.name(),
                location, file.size, bytes, offset);
  return over_bytes(proto, type, file.owner, file.data + offset, bytes);
}

/// One of the typed fields; a field of another type than the tensor's is empty, so its size
/// differs.
template <class Field>
Result<Tensor> from_field(const TensorProto& proto, const TensorType& type, const Field& field) {
  if (field.size() != element_count(type.shape))
    return fail("tensor '{}': found {} values, want {} for {}", proto.name(), field.size(),
                element_count(type.shape), to_string(type));
  Tensor tensor(type);
  copy_field(field, tensor);
  return tensor;
}

Result<Tensor> text_tensor(const TensorProto& proto, const TensorType& type) {
  if (proto.string_data_size() != element_count(type.shape))
    return fail("tensor '{}': found {} strings, want {}", proto.name(), proto.string_data_size(),
                element_count(type.shape));
  Tensor out(type);
  for (int i = 0; i < proto.string_data_size(); ++i)
    out.set_int(i, HEDDLE_TRY(text_id(proto.string_data(i))));
  return out;
}

/// A tensor in a format that only stores: 2 or 4 bits are packed from the low end of each byte.
Result<Tensor> stored_tensor(const TensorProto& proto, const TensorType& type, ops::Format format,
                             TensorSource& source) {
  const int bits = ops::bits_of(format);
  const std::int64_t count = element_count(type.shape), per_byte = 8 / bits;
  const TensorType packed{DType::u8, {(count + per_byte - 1) / per_byte}};
  Tensor bytes;
  if (proto.data_location() == TensorProto::EXTERNAL)
    bytes = HEDDLE_TRY(external_tensor(proto, packed, source));
  else if (proto.has_raw_data())
    bytes = HEDDLE_TRY(
        over_bytes(proto, packed, source.owner, proto.raw_data().data(), proto.raw_data().size()));
  else
    bytes = HEDDLE_TRY(from_field(proto, packed, proto.int32_data()));
  Tensor out(type);
  const auto range = ops::int_range(format);
  for (std::int64_t i = 0; i < count; ++i) {
    const int shift = static_cast<int>(i % per_byte) * bits;
    std::int64_t value = bytes.int_at(i / per_byte) >> shift & ((1 << bits) - 1);
    if (range && value > range->high) value -= std::int64_t{1} << bits;
    out.set_int(i, value);
  }
  return out;
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

/// "(2, 3), …": whole numbers, each but a last one followed by a comma.
Result<Shape> npy_shape(const std::string& path, const std::string& header) {
  const std::size_t close = header.find(')');
  if (!header.starts_with('(') || close == std::string::npos)
    return fail("{}: the header has no shape", path);
  const std::string text = trimmed(header.substr(1, close - 1));
  Shape shape;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    const std::string number = trimmed(text.substr(i, end - i));
    const bool digits = number.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || number.empty() || number.size() > 12)
      return fail("{}: found shape ({}), want whole numbers of at most 12 digits", path, text);
    shape.push_back(std::stoll(number));
    i = end + 1;
  }
  return shape;
}

Result<Tensor> read_npy(const std::string& path) {
  const FileBytes file = HEDDLE_TRY(map_file(path));
  const auto* bytes = reinterpret_cast<const unsigned char*>(file.data);
  if (file.size < 12 || std::memcmp(bytes, "\x93NUMPY", 6) != 0)
    return fail("{}: not a .npy file", path);
  const bool v1 = bytes[6] == 1;
  if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0)
    return fail("{}: found format version {}.{}, want 1.0 to 3.0", path, bytes[6], bytes[7]);
  const std::size_t start = v1 ? 10 : 12;
  std::size_t length = bytes[8] | bytes[9] << 8;
  if (!v1) length |= std::size_t{bytes[10]} << 16 | std::size_t{bytes[11]} << 24;
  if (length > file.size - start) return fail("{}: truncated header", path);
  std::string header(reinterpret_cast<const char*>(bytes) + start, length);
  std::ranges::replace(header, '"', '\'');
  const auto value_of = [&](const std::string& key) {
    const std::size_t at = header.find("'" + key + "'"), colon = header.find(':', at);
    return at == std::string::npos || colon == std::string::npos
               ? std::string()
               : trimmed(header.substr(colon + 1));
  };
  const std::string descr = value_of("descr");
  const std::size_t quote = descr.find('\'');
  const std::string code = quote == std::string::npos
                               ? ""
                               : descr.substr(quote + 1, descr.find('\'', quote + 1) - quote - 1);
  constexpr std::pair<std::string_view, DType> kCodes[] = {
      {"f4", DType::f32}, {"f8", DType::f64}, {"f2", DType::f16}, {"i1", DType::i8},
      {"i2", DType::i16}, {"i4", DType::i32}, {"i8", DType::i64}, {"u1", DType::u8},
      {"u2", DType::u16}, {"u4", DType::u32}, {"u8", DType::u64}, {"b1", DType::b1}};
  std::optional<DType> type;
  for (const auto& [name, dtype] : kCodes)
    if (code.size() == 3 && code[0] != '>' && code.substr(1) == name) type = dtype;
  if (!type) return fail("{}: found element type '{}', want a little-endian number", path, code);
  if (!value_of("fortran_order").starts_with("False"))
    return fail("{}: want 'fortran_order': False (row-major)", path);
  const Shape shape = HEDDLE_TRY(npy_shape(path, value_of("shape")));
  const auto count = checked_element_count(shape, *type);
  if (!count || static_cast<std::size_t>(*count * size_of(*type)) != file.size - start - length)
    return fail("{}: found {} bytes, want {} of {}", path, file.size - start - length,
                name_of(*type), to_string(shape));
  Tensor tensor({*type, shape});
  HEDDLE_TRY(
      copy_bytes(path, bytes + start + length, static_cast<std::size_t>(tensor.bytes()), tensor));
  return tensor;
}

Result<std::string> npy_bytes(const Tensor& tensor) {
  std::string_view code;
  switch (tensor.dtype()) {
    case DType::f32:
      code = "<f4";
      break;
    case DType::f64:
      code = "<f8";
      break;
    case DType::f16:
      code = "<f2";
      break;
    case DType::i8:
      code = "|i1";
      break;
    case DType::i16:
      code = "<i2";
      break;
    case DType::i32:
      code = "<i4";
      break;
    case DType::i64:
      code = "<i8";
      break;
    case DType::u8:
      code = "|u1";
      break;
    case DType::u16:
      code = "<u2";
      break;
    case DType::u32:
      code = "<u4";
      break;
    case DType::u64:
      code = "<u8";
      break;
    case DType::b1:
      code = "|b1";
      break;
    case DType::bf16:
      return unsupported("npy: NumPy has no bf16; use .pb");
  }
  std::string shape;
  for (std::int64_t extent : tensor.shape()) shape += std::to_string(extent) + ",";
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", code, shape);
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  return bytes.append(tensor.view());
}

}  // namespace

Result<DType> dtype_from_onnx(int number) {
  if (const ops::Format format = ops::format_of_onnx(number); format != ops::Format::plain)
    return ops::carrier_of(format);
  for (const TypeRow& row : kTypes)
    if (row.onnx == number) return row.type;
  const std::string name =
      TensorProto::DataType_IsValid(number)
          ? TensorProto::DataType_Name(static_cast<TensorProto::DataType>(number))
          : fmt::format("number {}", number);
  return unsupported("element type {} is not supported", name);
}

int dtype_to_onnx(DType type) {
  for (const TypeRow& row : kTypes)
    if (row.type == type) return row.onnx;
  return 0;
}

int onnx_number(DType type, ops::Format format) {
  if (format == ops::Format::plain) return dtype_to_onnx(type);
  int number = 1;
  while (number < TensorProto::DataType_ARRAYSIZE && ops::format_of_onnx(number) != format)
    ++number;
  return number;
}

Result<Tensor> tensor_from_proto(const TensorProto& proto, TensorSource& source) {
  const Result<DType> dtype = dtype_from_onnx(proto.data_type());
  if (!dtype)
    return fail(dtype.error().code, "tensor '{}': {}", proto.name(), dtype.error().message);
  const TensorType type{*dtype, Shape(proto.dims().begin(), proto.dims().end())};
  if (!checked_element_count(type.shape, type.dtype))
    return fail("tensor '{}': found impossible shape {}", proto.name(), to_string(type.shape));
  if (proto.has_segment())
    return unsupported("tensor '{}': it is stored in segments", proto.name());
  const ops::Format format = ops::format_of_onnx(proto.data_type());
  if (format == ops::Format::text) return text_tensor(proto, type);
  if (format != ops::Format::plain) return stored_tensor(proto, type, format, source);
  if (proto.data_location() == TensorProto::EXTERNAL) return external_tensor(proto, type, source);
  if (proto.has_raw_data() && source.take) {
    const std::shared_ptr<const std::string> bytes(
        const_cast<TensorProto&>(proto).release_raw_data());
    return over_bytes(proto, type, bytes, bytes->data(), bytes->size());
  }
  if (proto.has_raw_data())
    return over_bytes(proto, type, source.owner, proto.raw_data().data(), proto.raw_data().size());
  switch (type.dtype) {
    case DType::f32:
      return from_field(proto, type, proto.float_data());
    case DType::f64:
      return from_field(proto, type, proto.double_data());
    case DType::i64:
      return from_field(proto, type, proto.int64_data());
    case DType::u32:
    case DType::u64:
      return from_field(proto, type, proto.uint64_data());
    case DType::f16:
    case DType::bf16:
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::u8:
    case DType::u16:
    case DType::b1:
      return from_field(proto, type, proto.int32_data());
  }
  return unsupported("tensor '{}': found element type {}", proto.name(), name_of(type.dtype));
}

Result<Tensor> external_bytes(const TensorProto& proto, TensorSource& source) {
  const DType dtype = HEDDLE_TRY(dtype_from_onnx(proto.data_type()));
  const auto count = checked_element_count(Shape(proto.dims().begin(), proto.dims().end()), dtype);
  if (!count) return fail("tensor '{}': found an impossible shape", proto.name());
  const ops::Format format = ops::format_of_onnx(proto.data_type());
  const std::int64_t bits =
      format == ops::Format::plain ? 8 * size_of(dtype) : ops::bits_of(format);
  return external_tensor(proto, {DType::u8, {(*count * bits + 7) / 8}}, source);
}

namespace {

template <class Proto>
Result<Proto> parse_file(const std::string& path, std::string_view what) {
  const FileBytes file = HEDDLE_TRY(map_file(path));
  Proto proto;
  if (file.size > 0x7fffffff || !proto.ParseFromArray(file.data, static_cast<int>(file.size)))
    return fail("{}: not a serialised ONNX {}", path, what);
  return proto;
}

Result<Tensor> tensor_of_file(const std::string& path, const TensorProto& proto) {
  TensorSource source;
  Result<Tensor> tensor = tensor_from_proto(proto, source);
  if (!tensor) return fail(tensor.error().code, "{}: {}", path, tensor.error().message);
  return tensor;
}

Result<std::vector<Tensor>> items_of_file(const std::string& path,
                                          const ::onnx::SequenceProto& proto) {
  std::vector<Tensor> items;
  for (const TensorProto& item : proto.tensor_values())
    items.push_back(HEDDLE_TRY(tensor_of_file(path, item)));
  return items;
}

}  // namespace

Result<Tensor> read_tensor(const std::string& path) {
  if (path.ends_with(".npy")) return read_npy(path);
  return tensor_of_file(path, HEDDLE_TRY(parse_file<TensorProto>(path, "tensor")));
}

Result<std::optional<std::vector<Tensor>>> read_value(const std::string& path, Port::Kind kind) {
  using Found = std::optional<std::vector<Tensor>>;
  switch (kind) {
    case Port::Kind::tensor:
      return Found({HEDDLE_TRY(read_tensor(path))});
    case Port::Kind::sequence:
      return Found(HEDDLE_TRY(
          items_of_file(path, HEDDLE_TRY(parse_file<::onnx::SequenceProto>(path, "sequence")))));
    case Port::Kind::optional:
    case Port::Kind::optional_sequence: {
      const auto proto = HEDDLE_TRY(parse_file<::onnx::OptionalProto>(path, "optional value"));
      if (proto.has_tensor_value())
        return Found({HEDDLE_TRY(tensor_of_file(path, proto.tensor_value()))});
      if (proto.has_sequence_value())
        return Found(HEDDLE_TRY(items_of_file(path, proto.sequence_value())));
      return Found();
    }
    case Port::Kind::other:
      break;
  }
  return unsupported("{}: neither a tensor nor made of tensors", path);
}

Result<OutputItems> items_of(const Port& port, const std::map<std::string, Output>& outputs) {
  OutputItems items;
  if (const auto found = outputs.find(port.name); found != outputs.end())
    return OutputItems{found->second};
  if (port.kind == Port::Kind::other)
    return unsupported("output '{}': it is neither a tensor nor made of tensors", port.name);
  if (port.kind == Port::Kind::tensor) return fail("output '{}' is missing", port.name);
  while (true) {
    const auto item = outputs.find(fmt::format("{}[{}]", port.name, items.size()));
    if (item == outputs.end()) return items;
    items.push_back(item->second);
  }
}

namespace {

void set_tensor(const std::string& name, const Output& output, TensorProto& proto) {
  const Tensor& tensor = output.tensor;
  const bool text = output.format == ops::Format::text;
  proto.set_name(name);
  proto.set_data_type(text ? TensorProto::STRING : dtype_to_onnx(tensor.dtype()));
  for (std::int64_t extent : tensor.shape()) proto.add_dims(extent);
  for (std::int64_t i = 0; text && i < tensor.count(); ++i)
    proto.add_string_data(text_of(tensor.int_at(i)).value_or("?"));
  if (!text) proto.set_raw_data(tensor.data(), static_cast<std::size_t>(tensor.bytes()));
}

void set_sequence(const Port& port, const OutputItems& items, ::onnx::SequenceProto& proto) {
  proto.set_name(port.name);
  proto.set_elem_type(::onnx::SequenceProto::TENSOR);
  for (const Output& item : items) set_tensor("", item, *proto.add_tensor_values());
}

Status write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return fail("{}: cannot write", path);
  return Ok{};
}

}  // namespace

Status write_value(const std::string& path, const Port& port, const OutputItems& items) {
  ::onnx::SequenceProto sequence;
  set_sequence(port, items, sequence);
  if (port.kind == Port::Kind::sequence) return write_bytes(path, sequence.SerializeAsString());
  ::onnx::OptionalProto optional;
  optional.set_name(port.name);
  optional.set_elem_type(::onnx::OptionalProto::UNDEFINED);
  if (port.kind == Port::Kind::optional && !items.empty()) {
    optional.set_elem_type(::onnx::OptionalProto::TENSOR);
    set_tensor("", items[0], *optional.mutable_tensor_value());
  } else if (!items.empty()) {
    optional.set_elem_type(::onnx::OptionalProto::SEQUENCE);
    *optional.mutable_sequence_value() = sequence;
  }
  return write_bytes(path, optional.SerializeAsString());
}

Status write_tensor(const std::string& path, const std::string& name, const Tensor& tensor,
                    ops::Format format) {
  std::string bytes;
  const bool text = format == ops::Format::text;
  if (text && !path.ends_with(".pb"))
    return fail(ErrorCode::usage, "{}: strings are written as .pb only", path);
  if (path.ends_with(".npy")) {
    bytes = HEDDLE_TRY(npy_bytes(tensor));
  } else if (path.ends_with(".pb")) {
    TensorProto proto;
    set_tensor(name, {tensor, format}, proto);
    bytes = proto.SerializeAsString();
  } else {
    return fail(ErrorCode::usage, "{}: want a name that ends in .npy or .pb", path);
  }
  return write_bytes(path, bytes);
}

}  // namespace heddle::onnx
