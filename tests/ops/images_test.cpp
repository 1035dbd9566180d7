// Encoded pictures: what the formats that are decoded here hold, and damage.
#include "ops/images.h"

#include <gtest/gtest.h>

#include <string>

namespace heddle::ops {
namespace {

using Rgb = std::vector<int>;

Bytes bytes(const std::string& file) {
  return {reinterpret_cast<const std::uint8_t*>(file.data()), file.size()};
}
Rgb rgb_of(const std::string& file) {
  const auto picture = decode_picture(bytes(file));
  EXPECT_TRUE(picture) << picture.error().message;
  return picture ? Rgb(picture->rgb.begin(), picture->rgb.end()) : Rgb();
}
std::string error_of(const std::string& file) {
  const auto picture = decode_picture(bytes(file));
  return picture ? "" : picture.error().message;
}

std::string little(std::uint32_t value, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(value >> (8 * i) & 255);
  return text;
}
/// A header of 40 bytes; `extra` follows it (masks, palette).
std::string bmp(int width, int height, int bits, int packing, const std::string& extra,
                const std::string& pixels) {
  return "BM" + little(0, 8) + little(static_cast<std::uint32_t>(54 + extra.size()), 4) +
         little(40, 4) + little(static_cast<std::uint32_t>(width), 4) +
         little(static_cast<std::uint32_t>(height), 4) + little(1, 2) +
         little(static_cast<std::uint32_t>(bits), 2) +
         little(static_cast<std::uint32_t>(packing), 4) + little(0, 20) + extra + pixels;
}
std::string text(std::initializer_list<int> values) {
  std::string out;
  for (const int v : values) out += static_cast<char>(v);
  return out;
}

TEST(Images, BmpRowsStandFromTheBottom) {
  const std::string pixels = text({3, 2, 1, 0, 6, 5, 4, 0});  // one pixel a row, padded to 4
  EXPECT_EQ(rgb_of(bmp(1, 2, 24, 0, "", pixels)), (Rgb{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(rgb_of(bmp(1, -2, 24, 0, "", pixels)), (Rgb{1, 2, 3, 4, 5, 6}));
}

TEST(Images, BmpWithAPalette) {
  const std::string palette = text({3, 2, 1, 0, 6, 5, 4, 0});
  EXPECT_EQ(rgb_of(bmp(3, 1, 1, 0, palette, text({0x40, 0, 0, 0}))),
            (Rgb{1, 2, 3, 4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(error_of(bmp(3, 1, 4, 0, palette, text({0, 0, 0, 0}))), "BMP: the palette is cut off");
}

TEST(Images, BmpWithMasks) {
  const std::string rgb565 = little(0xf800, 4) + little(0x7e0, 4) + little(0x1f, 4);
  EXPECT_EQ(rgb_of(bmp(2, 1, 16, 3, rgb565, little(0xf800, 2) + little(0x7e1, 2))),
            (Rgb{255, 0, 0, 0, 255, 8}));
  EXPECT_EQ(rgb_of(bmp(1, 1, 32, 0, "", text({3, 2, 1, 9}))), (Rgb{1, 2, 3}));
}

TEST(Images, PnmOfEveryKind) {
  EXPECT_EQ(rgb_of("P1 2 1 10"), (Rgb{0, 0, 0, 255, 255, 255}));
  EXPECT_EQ(rgb_of("P2 1 1 4 2"), (Rgb{128, 128, 128}));
  EXPECT_EQ(rgb_of("P4\n9 1\n" + text({0, 0x80})),
            (Rgb{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
                 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0,   0,   0}));
  EXPECT_EQ(rgb_of("P5 1 1 65535\n" + text({0x80, 0})), (Rgb{128, 128, 128}));
  EXPECT_EQ(rgb_of("P6\n# a comment\n1 1\n255\n" + text({7, 8, 9})), (Rgb{7, 8, 9}));
}

TEST(Images, SizesAreCheckedBeforeAnythingIsMade) {
  EXPECT_EQ(error_of(""), "found none of BMP, JPEG, JPEG2000, PNG, PNM, TIFF and WebP");
  EXPECT_EQ(error_of("P6 90000 90000 255 "), "found 90000 × 90000 pixels, want at most 67108864");
  EXPECT_EQ(error_of("P6 0 3 255 "), "found 0 × 3 pixels");
  EXPECT_EQ(error_of("P5 3 1 255 ab"), "PNM: the pixels are cut off");
  EXPECT_EQ(error_of("P2 3 1 255 1 2 300"), "PNM: value 2 is missing or too large");
  EXPECT_EQ(error_of(bmp(1, 2000000000, 24, 0, "", "")), "BMP: the pixels are cut off");
  EXPECT_EQ(error_of(bmp(1, 1, 8, 1, "", "")), "BMP: compression 1 is not supported");
}

TEST(Images, FilesCutOffAreErrors) {
  for (const std::string& file :
       {bmp(2, 1, 4, 0, std::string(64, 'p'), "abcd"), std::string("P6 1 1 255 abc")})
    for (std::size_t size = 0; size < file.size(); ++size)
      EXPECT_NE(error_of(file.substr(0, size)), "") << size;
}

}  // namespace
}  // namespace heddle::ops
