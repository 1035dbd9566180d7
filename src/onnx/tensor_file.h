#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onnx/reader.h"
#include "ops/format.h"
#include "support/file.h"
#include "support/result.h"
#include "support/tensor.h"

namespace onnx {
class TensorProto;
}

namespace heddle::onnx {

/// ONNX's TensorProto.DataType as an element type; the error names what was found.
Result<DType> dtype_from_onnx(int number);
int dtype_to_onnx(DType type);
/// The same for values in a format.
int onnx_number(DType type, ops::Format format);

/// What the bytes of a model's tensors come from.
struct TensorSource {
  std::string folder;  ///< where external data may lie, which must not leave it; empty: refused
  /// Keeps the parsed model alive, so that tensors may share its bytes; null: bytes are copied.
  std::shared_ptr<const void> owner;
  std::map<std::string, FileBytes> files;  ///< external files that are mapped already
  bool take = false;                       ///< bytes leave the message for the tensor
};
/// Converts a TensorProto, sharing its bytes or those of the external file where they are aligned.
/// Nothing is allocated before the bytes are known to be there.
Result<Tensor> tensor_from_proto(const ::onnx::TensorProto& proto, TensorSource& source);
/// The data of a tensor that lie in another file, as they lie there: u8[bytes].
Result<Tensor> external_bytes(const ::onnx::TensorProto& proto, TensorSource& source);

/// Reads a tensor from .npy or a serialised TensorProto (.pb), by extension.
Result<Tensor> read_tensor(const std::string& path);
/// The tensors of a serialised value of that kind: of a tensor one, of a sequence its items;
/// nullopt for an optional value that is absent.
Result<std::optional<std::vector<Tensor>>> read_value(const std::string& path, Port::Kind kind);
/// Writes .npy or .pb, by extension.
/// (.pb alone for strings).
Status write_tensor(const std::string& path, const std::string& name, const Tensor& tensor,
                    ops::Format format = ops::Format::plain);

/// A tensor that a model makes; `format`: what its numbers stand for.
struct Output {
  Tensor tensor;
  ops::Format format = ops::Format::plain;
};
/// What a port of the model is given: a tensor, the items of a sequence, or nothing where an
/// optional value is absent.
using OutputItems = std::vector<Output>;
/// The port's out of outputs by the graph's names ("name[0]", … for a sequence). Unsupported: the
/// port holds something else than tensors (maps of ZipMap are given as a tensor); one is missing.
Result<OutputItems> items_of(const Port& port, const std::map<std::string, Output>& outputs);
/// Writes a sequence or an optional value as ONNX serialises it.
Status write_value(const std::string& path, const Port& port, const OutputItems& items);

}  // namespace heddle::onnx
