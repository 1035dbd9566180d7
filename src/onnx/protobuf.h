#pragma once
// The generated ONNX classes, with the warnings of foreign code off.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#ifndef ONNX_ML
#define ONNX_ML 1
#endif
#ifndef ONNX_NAMESPACE
#define ONNX_NAMESPACE onnx
#endif
#include <onnx/onnx_pb.h>
// After the types that it uses.
#include <onnx/onnx-data_pb.h>
#pragma GCC diagnostic pop
