// Tensors in files: what is written is read back; damaged files are refused.
#include "onnx/tensor_file.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

#include "models.h"

namespace heddle::onnx::test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8,
                            DType::i16, DType::i32, DType::i64, DType::u8,   DType::u16,
                            DType::u32, DType::u64, DType::b1};

std::string path_of(const std::string& name) {
  return testing::TempDir() + std::to_string(::getpid()) + name;
}

Tensor some(DType type, Shape shape) {
  Tensor t(TensorType{type, std::move(shape)});
  for (std::int64_t i = 0; i < t.count(); ++i) t.set(i, static_cast<double>(i % 2 + (i > 3)));
  return t;
}

TEST(TensorFile, RoundTrips) {
  for (const DType type : kTypes)
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{2, 3}, Shape{0, 4}})
      for (const std::string extension : {".npy", ".pb"}) {
        if (type == DType::bf16 && extension == ".npy") continue;  // NumPy has no such type
        const Tensor wrote = some(type, shape);
        const std::string path = path_of("tensor" + extension);
        ASSERT_TRUE(write_tensor(path, "t", wrote).ok());
        const auto read = read_tensor(path);
        ASSERT_TRUE(read.ok()) << read.error().message;
        ASSERT_EQ(read->type(), wrote.type());
        EXPECT_EQ(std::memcmp(read->data(), wrote.data(), static_cast<std::size_t>(wrote.bytes())),
                  0)
            << to_string(wrote.type()) << extension;
      }
}

TEST(TensorFile, TypesHaveNumbers) {
  for (const DType type : kTypes) {
    const auto back = dtype_from_onnx(dtype_to_onnx(type));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, type);
  }
  EXPECT_EQ(dtype_from_onnx(TensorProto::COMPLEX64).error().code, ErrorCode::unsupported);
}

TEST(TensorFile, DamagedFilesAreRefused) {
  for (const std::string extension : {".npy", ".pb"}) {
    const std::string path = path_of("damaged" + extension);
    ASSERT_TRUE(write_tensor(path, "t", some(DType::f32, {2, 3})).ok());
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    const std::string bytes = text.str();
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      std::ofstream(path, std::ios::binary) << bytes.substr(0, n);
      EXPECT_FALSE(read_tensor(path).ok()) << extension << ", " << n << " bytes";
    }
  }
  EXPECT_EQ(write_tensor(path_of("tensor.txt"), "t", some(DType::f32, {1})).error().code,
            ErrorCode::usage);
  EXPECT_FALSE(read_tensor(path_of("nothing.npy")).ok());
}

TEST(TensorFile, HeadersOfNpyAreReadInFull) {
  const std::string path = path_of("header.npy");
  ASSERT_TRUE(write_tensor(path, "t", some(DType::f32, {23, 4})).ok());
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = text.str(), shape = "(23,4,), }";
  const std::size_t at = bytes.find(shape);
  ASSERT_NE(at, std::string::npos);
  const auto reads = [&](const std::string& other, char version = 1) {
    std::string changed = bytes;
    changed.replace(at, shape.size(), other);
    changed[6] = version;
    std::ofstream(path, std::ios::binary) << changed;
    return read_tensor(path).ok();
  };
  EXPECT_TRUE(reads("(23, 4), }"));
  EXPECT_TRUE(reads("(23,\t4), }"));
  for (const std::string bad :
       {"(-23,4), }", "(23.5,4),}", "(23,,4), }", "(+23,4), }", "[23,4,], }", "(23,4,   }",
        "(0x17,4),}", "(23L,4), }", "(2 3,4), }"})
    EXPECT_FALSE(reads(bad)) << bad;
  EXPECT_FALSE(reads(shape, 9));
  EXPECT_FALSE(reads(shape, 0));
  const std::size_t order = bytes.find("False, ");
  for (const std::string other : {"   True", "1      ", "'False'"}) {
    std::string changed = bytes;
    std::ofstream(path, std::ios::binary) << changed.replace(order, other.size(), other);
    EXPECT_FALSE(read_tensor(path).ok()) << other;
  }
}

}  // namespace
}  // namespace heddle::onnx::test
