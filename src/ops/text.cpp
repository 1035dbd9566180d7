#include <re2/re2.h>
#include <wctype.h>

#include <locale.h>
#include <algorithm>
#include <charconv>
#include <clocale>
#include <cmath>

#include "ops/families.h"
#include "ops/host.h"
#include "ops/util.h"
#include "support/text_id.h"

/// Operators on the characters of strings: host functions.
namespace heddle::ops {
namespace {

using HostValues = std::vector<HostValue>;

Result<std::string> text_at(const Call& call, const Tensor& t, std::int64_t i) {
  auto text = text_of(t.int_at(i));
  if (!text) return call.error("element {} stands for no known string", i);
  return *std::move(text);
}

Result<std::vector<std::string>> texts_of(const Call& call, const Tensor& t) {
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < t.count(); ++i) out.push_back(HEDDLE_TRY(text_at(call, t, i)));
  return out;
}

Result<HostValue> text_tensor(const Shape& shape, const std::vector<std::string>& texts) {
  Tensor out({DType::i64, shape});
  for (std::size_t i = 0; i < texts.size(); ++i)
    out.set_int(static_cast<std::int64_t>(i), HEDDLE_TRY(text_id(texts[i])));
  return HostValue{std::move(out), Format::text};
}

std::vector<std::string> texts_attribute(const Call& call, std::string_view key) {
  const auto found = call.attributes.find(key);
  if (found == call.attributes.end()) return {};
  const auto* texts = std::get_if<std::vector<std::string>>(&found->second);
  return texts != nullptr ? *texts : std::vector<std::string>();
}

/// Upper or lower case of UTF-8, character by character; bytes that are no UTF-8 stay.
std::string in_case(const std::string& text, bool upper) {
  static const locale_t kLocale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = byte < 0x80             ? 1
                               : (byte & 0xe0) == 0xc0 ? 2
                               : (byte & 0xf0) == 0xe0 ? 3
                                                       : 1;
    wint_t code = length == 1 ? byte : byte & (0xffu >> (length + 1));
    if (i + length > text.size() || (length == 1 && byte >= 0x80)) {
      out += text[i++];
      continue;
    }
    for (std::size_t k = 1; k < length; ++k)
      code = code << 6 | (static_cast<unsigned char>(text[i + k]) & 0x3fu);
    if (kLocale != nullptr)
      code = upper ? ::towupper_l(code, kLocale) : ::towlower_l(code, kLocale);
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xc0 | code >> 6);
      out += static_cast<char>(0x80 | (code & 0x3f));
    } else {
      out += static_cast<char>(0xe0 | code >> 12);
      out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
      out += static_cast<char>(0x80 | (code & 0x3f));
    }
    i += length;
  }
  return out;
}

/// Drops stop words, then changes case; a result without words is one empty word.
Result<HostValues> normalizer(const Call& call, std::span<const Tensor> args) {
  const Shape& shape = args[0].shape();
  if (shape.empty() || shape.size() > 2 || (shape.size() == 2 && shape[0] != 1))
    return call.error("input 0 has shape {}, want [C] or [1,C]", to_string(shape));
  const int change =
      HEDDLE_TRY(choice(call, "case_change_action", "NONE", {"NONE", "LOWER", "UPPER"}));
  const bool exact = call.attribute_int("is_case_sensitive", 0) != 0;
  std::vector<std::string> stop = texts_attribute(call, "stopwords");
  if (!exact)
    for (std::string& word : stop) word = in_case(word, false);
  std::vector<std::string> kept;
  for (const std::string& word : HEDDLE_TRY(texts_of(call, args[0]))) {
    const std::string key = exact ? word : in_case(word, false);
    if (std::find(stop.begin(), stop.end(), key) != stop.end()) continue;
    kept.push_back(change == 0 ? word : in_case(word, change == 2));
  }
  if (kept.empty()) kept.emplace_back();
  Shape out = shape;
  out.back() = static_cast<std::int64_t>(kept.size());
  return HostValues{HEDDLE_TRY(text_tensor(out, kept))};
}

Result<HostValues> concat(const Call& call, std::span<const Tensor> args) {
  const auto shape = broadcast_shapes(args[0].shape(), args[1].shape());
  if (!shape || !checked_element_count(*shape, DType::i64))
    return call.error("{} and {} do not broadcast", to_string(args[0].shape()),
                      to_string(args[1].shape()));
  const auto position = [&](const Shape& in, std::int64_t i) {
    std::int64_t at = 0, stride = 1;
    for (std::size_t d = shape->size(), k = in.size(); d-- > 0;) {
      const std::int64_t coordinate = i % (*shape)[d];
      i /= (*shape)[d];
      if (k == 0) continue;
      --k;
      at += in[k] == 1 ? 0 : coordinate * stride;
      stride *= in[k];
    }
    return at;
  };
  const auto left = HEDDLE_TRY(texts_of(call, args[0]));
  const auto right = HEDDLE_TRY(texts_of(call, args[1]));
  std::vector<std::string> out;
  for (std::int64_t i = 0; i < element_count(*shape); ++i)
    out.push_back(left[static_cast<std::size_t>(position(args[0].shape(), i))] +
                  right[static_cast<std::size_t>(position(args[1].shape(), i))]);
  return HostValues{HEDDLE_TRY(text_tensor(*shape, out))};
}

/// As Python's str.split: without a delimiter at runs of white space; at most `most` cuts.
std::vector<std::string> pieces_of(const std::string& text, const std::string& delimiter,
                                   std::int64_t most) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  std::vector<std::string> out;
  std::size_t at = 0;
  if (!delimiter.empty()) {
    for (std::size_t end; most != 0 && (end = text.find(delimiter, at)) != std::string::npos;
         --most) {
      out.push_back(text.substr(at, end - at));
      at = end + delimiter.size();
    }
    if (!text.empty()) out.push_back(text.substr(at));
    return out;
  }
  while ((at = text.find_first_not_of(kSpace, at)) != std::string::npos) {
    const std::size_t end = most == 0 ? text.find_last_not_of(kSpace) + 1
                                      : std::min(text.find_first_of(kSpace, at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end;
    if (most-- == 0) break;
  }
  return out;
}

Result<HostValues> split(const Call& call, std::span<const Tensor> args) {
  const std::string delimiter = call.attribute_string("delimiter", "");
  const std::int64_t most = call.attribute_int("maxsplit", -1);
  std::vector<std::vector<std::string>> rows;
  std::size_t width = 0;
  for (const std::string& text : HEDDLE_TRY(texts_of(call, args[0]))) {
    rows.push_back(pieces_of(text, delimiter, most));
    width = std::max(width, rows.back().size());
  }
  Shape shape = args[0].shape();
  Tensor counts({DType::i64, shape});
  shape.push_back(static_cast<std::int64_t>(width));
  if (!checked_element_count(shape, DType::i64))
    return call.unsupported("{} pieces are too many", to_string(shape));
  std::vector<std::string> pieces;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    counts.set_int(static_cast<std::int64_t>(i), static_cast<std::int64_t>(rows[i].size()));
    rows[i].resize(width);
    pieces.insert(pieces.end(), rows[i].begin(), rows[i].end());
  }
  return HostValues{HEDDLE_TRY(text_tensor(shape, pieces)), {counts, Format::plain}};
}

Result<HostValues> regex(const Call& call, std::span<const Tensor> args) {
  const std::string pattern = call.attribute_string("pattern", "");
  RE2::Options options;
  options.set_log_errors(false);
  const RE2 compiled(pattern, options);
  if (!compiled.ok())
    return call.error("attribute 'pattern' is '{}': {}", pattern, compiled.error());
  Tensor out({DType::b1, args[0].shape()});
  for (std::int64_t i = 0; i < out.count(); ++i) {
    const std::string text = HEDDLE_TRY(text_at(call, args[0], i));
    out.set_int(i, RE2::FullMatch(text, compiled) ? 1 : 0);
  }
  return HostValues{{out, Format::plain}};
}

std::string number_text(const Tensor& t, std::int64_t i) {
  if (t.dtype() == DType::b1) return t.int_at(i) != 0 ? "True" : "False";
  if (t.dtype() == DType::u64) return std::to_string(static_cast<std::uint64_t>(t.int_at(i)));
  if (is_int(t.dtype())) return std::to_string(t.int_at(i));
  const double value = t.at(i);
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "INF" : "-INF";
  return t.dtype() == DType::f64 ? fmt::format("{}", value)
                                 : fmt::format("{}", static_cast<float>(value));
}

template <class T>
std::optional<T> parsed(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool store_number(Tensor& t, std::int64_t i, std::string_view text) {
  const std::size_t from = text.find_first_not_of(" \t\n\r");
  text = from == std::string_view::npos ? std::string_view() : text.substr(from);
  text = text.substr(0, text.find_last_not_of(" \t\n\r") + 1);
  if (is_float(t.dtype())) {  // from_chars reads "inf" and "nan" in any case
    const auto value = parsed<double>(text);
    if (value) t.set(i, *value);
    return value.has_value();
  }
  if (t.dtype() == DType::u64) {
    const auto value = parsed<std::uint64_t>(text);
    if (value) t.set_int(i, static_cast<std::int64_t>(*value));
    return value.has_value();
  }
  const auto value = parsed<std::int64_t>(text);
  if (value) t.set_int(i, *value);
  return value.has_value();
}

}  // namespace

Result<std::vector<HostValue>> cast_text(const Call& call, std::span<const Tensor> args) {
  const bool like = args.size() > 1;
  const bool to_text = like ? call.format(1) == Format::text : call.attribute_int("to", 0) == 8;
  const Tensor& x = args[0];
  if (to_text) {
    if (call.format(0) == Format::text) return HostValues{{x, Format::text}};
    if (call.format(0) != Format::plain)
      return call.unsupported("input 0 is {}, which has no text", name_of(call.format(0)));
    std::vector<std::string> texts;
    for (std::int64_t i = 0; i < x.count(); ++i) texts.push_back(number_text(x, i));
    return HostValues{HEDDLE_TRY(text_tensor(x.shape(), texts))};
  }
  if (like && call.format(1) != Format::plain)
    return call.unsupported("a string as {}", name_of(call.format(1)));
  const DType type =
      like ? args[1].dtype() : HEDDLE_TRY(dtype_of_onnx(call, call.attribute_int("to", 0)));
  Tensor out({type, x.shape()});
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const std::string text = HEDDLE_TRY(text_at(call, x, i));
    if (!store_number(out, i, text))
      return call.error("element {} is '{}', want a number ({})", i, text, name_of(type));
  }
  return HostValues{{out, Format::plain}};
}

bool runs_on_host(const Call& call) {
  const OpDef* row = find_op(call.op, call.opset);
  if (row == nullptr || row->host == nullptr) return false;
  if (row->fission == nullptr) return true;
  const auto to = call.attributes.find("to");
  if (to != call.attributes.end() && std::holds_alternative<std::int64_t>(to->second) &&
      std::get<std::int64_t>(to->second) == 8)
    return true;
  return std::find(call.formats.begin(), call.formats.end(), Format::text) != call.formats.end();
}

bool may_run_on_host(const Call& call) {
  const OpDef* row = find_op(call.op, call.opset);
  return row != nullptr && row->host != nullptr && row->stored == OpDef::Stored::refuses;
}

Status check_host_call(const Call& call, std::span<const TensorType> types) {
  const OpDef& row = *find_op(call.op, call.opset);
  HEDDLE_TRY(check_arity(call, row));
  const bool texts = row.stored == OpDef::Stored::knows;
  for (std::size_t i = 0; row.fission == nullptr && i < types.size(); ++i) {
    const int at = static_cast<int>(i);
    if (!call.has(at)) continue;
    const Format format = call.format(at);
    if (texts && format != Format::text)
      return call.error("input {} is {}, want strings", i, to_string(types[i]));
    if (!texts && format != Format::plain)
      return call.error("input {} is {}, want the bytes of a file, u8[n]", i, name_of(format));
    if (!texts && (types[i].dtype != DType::u8 || types[i].shape.size() != 1))
      return call.error("input {} is {}, want the bytes of a file, u8[n]", i, to_string(types[i]));
  }
  return Ok{};
}

Result<std::vector<HostValue>> run_on_host(const Call& call, std::span<const Tensor> args) {
  const OpDef& row = *find_op(call.op, call.opset);
  auto values = row.host(call, args);
  if (!call.misread.empty()) return call.error("{}", call.misread);
  return values;
}

std::span<const OpDef> text_ops() {
  using Stored = OpDef::Stored;
  static constexpr OpDef kTextOps[] = {
      {"StringNormalizer", 10, 1, 1, nullptr, Stored::knows, normalizer},
      {"StringConcat", 20, 2, 2, nullptr, Stored::knows, concat},
      {"StringSplit", 20, 1, 1, nullptr, Stored::knows, split},
      {"RegexFullMatch", 20, 1, 1, nullptr, Stored::knows, regex},
  };
  return kTextOps;
}

}  // namespace heddle::ops
