#include <algorithm>
#include <optional>

#include "ops/images.h"

/// Pictures that are stored as they are: BMP and PNM.
namespace heddle::ops {
namespace {

std::uint32_t little(Bytes file, std::size_t at, int bytes) {
  std::uint32_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | file[at + static_cast<std::size_t>(i)];
  return value;
}

/// What lies under a mask, stretched to 8 bits.
std::uint8_t masked(std::uint32_t value, std::uint32_t mask) {
  if (mask == 0) return 0;
  const int shift = __builtin_ctz(mask);
  const std::uint32_t most = mask >> shift;
  return static_cast<std::uint8_t>((std::uint64_t{(value & mask) >> shift} * 255 + most / 2) /
                                   most);
}

struct BmpHeader {
  std::int64_t width, height;
  bool from_top;
  int bits;                             ///< a pixel
  std::size_t palette, colours, entry;  ///< position, count, bytes of one
  std::size_t pixels, stride;           ///< position, bytes of a row
  std::uint32_t red = 0x7c00, green = 0x3e0, blue = 0x1f;
};

Result<BmpHeader> bmp_header(Bytes file) {
  constexpr std::uint32_t kPlain = 0, kMasks = 3, kMasksAlpha = 6;
  if (file.size() < 26) return fail("BMP: {} bytes are no picture", file.size());
  const std::size_t size = little(file, 14, 4);
  const bool old = size == 12;  // OS/2
  if (!old && (size < 40 || size > 124 || file.size() < 14 + size))
    return fail("BMP: found a header of {} bytes", size);
  BmpHeader h{};
  const auto tall = static_cast<std::int32_t>(little(file, old ? 20 : 22, old ? 2 : 4));
  h.width = old ? little(file, 18, 2) : static_cast<std::int32_t>(little(file, 18, 4));
  h.from_top = tall < 0;
  h.height = std::abs(std::int64_t{tall});
  h.bits = static_cast<int>(little(file, old ? 24 : 28, 2));
  const std::uint32_t packing = old ? kPlain : little(file, 30, 4);
  const bool masks = packing == kMasks || packing == kMasksAlpha;
  if (packing != kPlain && !(masks && (h.bits == 16 || h.bits == 32)))
    return fail("BMP: compression {} is not supported", packing);
  h.palette = 14 + size;
  if (masks) {
    if (file.size() < 14 + 40 + 12) return fail("BMP: the header is cut off");
    h.red = little(file, 54, 4), h.green = little(file, 58, 4), h.blue = little(file, 62, 4);
  } else if (h.bits == 32) {
    h.red = 0xff0000, h.green = 0xff00, h.blue = 0xff;
  }
  h.entry = old ? 3 : 4;
  h.colours = old ? 0 : little(file, 46, 4);
  if (h.bits <= 8 && (h.colours == 0 || h.colours > std::size_t{1} << h.bits))
    h.colours = std::size_t{1} << h.bits;
  h.pixels = little(file, 10, 4);
  return h;
}

}  // namespace

Result<Picture> decode_bmp(Bytes file) {
  BmpHeader h = HEDDLE_TRY(bmp_header(file));
  if (h.bits != 1 && h.bits != 4 && h.bits != 8 && h.bits != 16 && h.bits != 24 && h.bits != 32)
    return fail("BMP: found {} bits a pixel", h.bits);
  if (h.bits <= 8 && (h.palette > file.size() || (file.size() - h.palette) / h.entry < h.colours))
    return fail("BMP: the palette is cut off");
  if (h.width <= 0 || h.width > kMaxPixels) return fail("BMP: found a width of {}", h.width);
  h.stride = static_cast<std::size_t>((h.width * h.bits + 31) / 32 * 4);
  if (h.pixels > file.size() ||
      (file.size() - h.pixels) / h.stride < static_cast<std::size_t>(h.height))
    return fail("BMP: the pixels are cut off");
  Picture picture = HEDDLE_TRY(blank_picture(h.height, h.width));
  std::uint8_t* out = picture.rgb.data();
  for (std::int64_t y = 0; y < h.height; ++y) {
    const std::size_t row =
        h.pixels + static_cast<std::size_t>(h.from_top ? y : h.height - 1 - y) * h.stride;
    for (std::int64_t x = 0; x < h.width; ++x, out += 3) {
      const std::size_t bit = static_cast<std::size_t>(x * h.bits), at = row + bit / 8;
      if (h.bits == 24) {
        out[0] = file[at + 2], out[1] = file[at + 1], out[2] = file[at];
      } else if (h.bits > 8) {
        const std::uint32_t value = little(file, at, h.bits / 8);
        out[0] = masked(value, h.red), out[1] = masked(value, h.green);
        out[2] = masked(value, h.blue);
      } else {
        const std::size_t code =
            file[at] >> (8 - h.bits - static_cast<int>(bit % 8)) & ((1 << h.bits) - 1);
        if (code >= h.colours) return fail("BMP: colour {} of {}", code, h.colours);
        const std::size_t entry = h.palette + code * h.entry;
        out[0] = file[entry + 2], out[1] = file[entry + 1], out[2] = file[entry];
      }
    }
  }
  return picture;
}

namespace {

/// Decimal numbers between white space and comments.
struct PnmReader {
  Bytes file;
  std::size_t at = 2;

  bool blank(std::uint8_t c) const { return c == ' ' || (c >= '\t' && c <= '\r'); }
  void skip() {
    for (; at < file.size(); ++at)
      if (file[at] == '#')
        while (at + 1 < file.size() && file[at] != '\n') ++at;
      else if (!blank(file[at]))
        return;
  }
  /// Nothing if there is none below 10^8.
  std::optional<std::int64_t> number(int digits = 8) {
    skip();
    std::int64_t value = 0;
    int count = 0;
    for (; count < digits && at < file.size() && file[at] >= '0' && file[at] <= '9'; ++at, ++count)
      value = 10 * value + file[at] - '0';
    if (count == 0) return std::nullopt;
    return value;
  }
};

}  // namespace

Result<Picture> decode_pnm(Bytes file) {
  const int kind = file[1] - '0';  // 1 to 3: as text; 4 to 6: as bytes
  const bool text = kind <= 3, bits = kind % 3 == 1;
  const std::int64_t channels = kind % 3 == 0 ? 3 : 1;
  PnmReader reader{file};
  const auto width = reader.number(), height = reader.number();
  const auto most = bits ? std::optional<std::int64_t>(1) : reader.number();
  if (!width || !height || !most || *most < 1 || *most > 65535)
    return fail("PNM: the header is damaged");
  Picture picture = HEDDLE_TRY(blank_picture(*height, *width));
  const std::size_t bytes = *most > 255 ? 2 : 1, first = reader.at + 1;
  const std::int64_t row =
      bits ? (*width + 7) / 8 : *width * channels * static_cast<std::int64_t>(bytes);
  if (!text &&
      (first > file.size() || file.size() - first < static_cast<std::size_t>(row * *height)))
    return fail("PNM: the pixels are cut off");
  for (std::int64_t i = 0; i < *height * *width * channels; ++i) {
    std::int64_t value = 0;
    const std::int64_t x = i % *width, y = i / *width;
    if (text) {
      const auto given = reader.number(bits ? 1 : 8);
      if (!given || *given > *most) return fail("PNM: value {} is missing or too large", i);
      value = *given;
    } else if (bits) {
      value = file[first + static_cast<std::size_t>(y * row + x / 8)] >> (7 - x % 8) & 1;
    } else {
      const std::size_t at = first + static_cast<std::size_t>(i) * bytes;
      value = bytes == 1 ? file[at] : file[at] << 8 | file[at + 1];
    }
    value = bits ? 255 * (1 - value) : (std::min(value, *most) * 255 + *most / 2) / *most;
    for (std::int64_t c = 0; c < 3 / channels; ++c)
      picture.rgb[static_cast<std::size_t>(channels == 3 ? i : 3 * i + c)] =
          static_cast<std::uint8_t>(value);
  }
  return picture;
}

}  // namespace heddle::ops
