#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "support/result.h"

/// Encoded pictures. Files are not trusted: every size in them is checked before it is used, and
/// what a picture may take is bounded.
namespace heddle::ops {

using Bytes = std::span<const std::uint8_t>;

/// 8 bits a channel, row by row from the top.
struct Picture {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> rgb;  ///< [height, width, 3]
};

/// More pixels than that are refused (200 MB of RGB).
constexpr std::int64_t kMaxPixels = std::int64_t{1} << 26;

/// Black, of that size; an error if a size is not positive or the picture too large.
Result<Picture> blank_picture(std::int64_t height, std::int64_t width);
/// BMP, JPEG, JPEG2000, PNG, PNM, TIFF or WebP, by the first bytes. Transparency is dropped.
Result<Picture> decode_picture(Bytes file);

Result<Picture> decode_bmp(Bytes file);       // image_plain.cpp
Result<Picture> decode_pnm(Bytes file);       // image_plain.cpp
Result<Picture> decode_jpeg2000(Bytes file);  // image_jpeg2000.cpp
Result<Picture> decode_tiff(Bytes file);      // image_tiff.cpp

}  // namespace heddle::ops
