#pragma once
#include <string>

#include "support/result.h"
#include "support/tensor.h"

namespace onnx {
class TensorProto;
}

namespace heddle::onnx {

/// ONNX's TensorProto.DataType as an element type; the error names what was found.
Result<DType> dtype_from_onnx(int number);
int dtype_to_onnx(DType type);

/// Converts a TensorProto. `folder`: where external data may lie; it must not leave that folder.
Result<Tensor> tensor_from_proto(const ::onnx::TensorProto& proto, const std::string& folder);

/// Reads a tensor from .npy or a serialised TensorProto (.pb), by extension.
Result<Tensor> read_tensor(const std::string& path);
/// Writes .npy or .pb, by extension.
Status write_tensor(const std::string& path, const std::string& name, const Tensor& tensor);

}  // namespace heddle::onnx
