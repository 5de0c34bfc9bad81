// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one door to nlohmann-json: bounded parsing into result<json>, and text that is always the
// same.
//
//     auto manifest = parse_json(bytes, {.max_bytes = 16 << 20});
//     if (!manifest) return manifest.error();
//     auto step = json_uint(*manifest, "step");       // result<std::uint64_t>
//
// `json` keeps its keys sorted, so equal values give equal bytes. Doubles survive a round trip.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/result.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace skein {

using json = nlohmann::json;                 ///< keys sorted
using ordered_json = nlohmann::ordered_json; ///< keys in order of insertion, for lines people read

/// What parse_json() accepts from outside.
struct json_limits {
    std::size_t max_bytes = 16u << 20;
    int max_depth = 32;
};

namespace detail {

/// Builds a value from what the parser meets. nlohmann's own parser with a callback goes through the
/// whole of an object for each object inside it: a header of 100 MB would take it hours.
class json_builder {
public:
    explicit json_builder(int max_depth) : max_depth_(static_cast<std::size_t>(max_depth)) {}

    bool null() { return put(json()) != nullptr; }
    bool boolean(bool value) { return put(value) != nullptr; }
    bool number_integer(json::number_integer_t value) { return put(value) != nullptr; }
    bool number_unsigned(json::number_unsigned_t value) { return put(value) != nullptr; }
    bool number_float(json::number_float_t value, const std::string&) {
        return put(value) != nullptr;
    }
    bool string(std::string& value) { return put(std::move(value)) != nullptr; }
    bool binary(json::binary_t&) { return false; }
    bool start_object(std::size_t) { return open(json::object()); }
    bool start_array(std::size_t) { return open(json::array()); }
    bool end_object() { return close(); }
    bool end_array() { return close(); }
    bool key(std::string& name) {
        require_depth();
        auto [member, is_new] =
            open_.back()->get_ref<json::object_t&>().emplace(std::move(name), nullptr);
        if (!is_new)
            throw error(errc::malformed,
                        fmt::format("JSON names the key '{}' twice", member->first));
        member_ = &member->second;
        return true;
    }
    /// "[json.exception.parse_error.101] parse error at line 1, column 3: ...": the sentence.
    bool parse_error(std::size_t, const std::string&, const json::exception& broken) {
        std::string_view what = broken.what();
        if (auto end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
        throw error(errc::malformed, fmt::format("not JSON: {}", what));
    }

    [[nodiscard]] json finish() { return std::move(whole_); }

private:
    void require_depth() const {
        if (open_.size() > max_depth_)
            throw error(errc::too_large, fmt::format("JSON is nested deeper than {}", max_depth_));
    }
    json* put(json value) {
        require_depth();
        if (open_.empty()) return &(whole_ = std::move(value));
        if (open_.back()->is_object()) return &(*member_ = std::move(value));
        return &open_.back()->get_ref<json::array_t&>().emplace_back(std::move(value));
    }
    bool open(json empty) {
        open_.push_back(put(std::move(empty)));
        return true;
    }
    bool close() {
        open_.pop_back();
        return true;
    }

    std::size_t max_depth_;
    json whole_;
    std::vector<json*> open_; // objects and arrays, the innermost last
    json* member_ = nullptr;  // the key that was met has no value yet
};

} // namespace detail

/// Parses text from outside. errc::too_large above the limits, errc::malformed for anything that is
/// not JSON or names a key twice in one object. Never throws. The time grows with the text alone.
[[nodiscard]] inline result<json> parse_json(std::string_view text, json_limits limits = {}) {
    if (text.size() > limits.max_bytes)
        return error(errc::too_large, fmt::format("JSON of {} bytes is longer than the limit of {}",
                                                  text.size(), limits.max_bytes));
    detail::json_builder built(limits.max_depth);
    try {
        if (json::sax_parse(text.begin(), text.end(), &built)) return built.finish();
        return error(errc::malformed, "not JSON");
    } catch (const error& refused) {
        return refused;
    } catch (const std::exception& broken) {
        return error(errc::malformed, fmt::format("not JSON: {}", broken.what()));
    }
}

[[nodiscard]] inline result<json> parse_json(byte_span bytes, json_limits limits = {}) {
    return parse_json(as_text(bytes), limits);
}

/// The text of a value: one line, or indented. NaN and infinity become null; bytes that are not
/// UTF-8 become U+FFFD.
template <class Json>
[[nodiscard]] std::string dump_json(const Json& value, int indent = -1) {
    return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

namespace detail {
inline error json_member_error(std::string_view key, std::string_view wanted) {
    return error(errc::malformed, fmt::format("'{}' is missing or is not {}", key, wanted));
}
/// A parsed 3 is unsigned, a 3 put in by a program is a signed integer; both are whole numbers >=
/// 0.
inline bool is_uint(const json& value) {
    return value.is_number_unsigned() ||
           (value.is_number_integer() && value.get<std::int64_t>() >= 0);
}
} // namespace detail

/// The member `key` of an object as an unsigned integer; errc::malformed if it is anything else.
[[nodiscard]] inline result<std::uint64_t> json_uint(const json& object, const std::string& key) {
    if (object.is_object())
        if (auto it = object.find(key); it != object.end() && detail::is_uint(*it))
            return it->get<std::uint64_t>();
    return detail::json_member_error(key, "a whole number >= 0");
}

/// The member `key` as a number.
[[nodiscard]] inline result<double> json_double(const json& object, const std::string& key) {
    if (object.is_object())
        if (auto it = object.find(key); it != object.end() && it->is_number())
            return it->get<double>();
    return detail::json_member_error(key, "a number");
}

/// The member `key` as text.
[[nodiscard]] inline result<std::string> json_string(const json& object, const std::string& key) {
    if (object.is_object())
        if (auto it = object.find(key); it != object.end() && it->is_string())
            return it->get<std::string>();
    return detail::json_member_error(key, "text");
}

/// The member `key` as an array of unsigned integers, at most max_items of them.
[[nodiscard]] inline result<std::vector<std::uint64_t>> json_uints(
    const json& object, const std::string& key, std::size_t max_items = SIZE_MAX) {
    std::vector<std::uint64_t> out;
    auto it = object.is_object() ? object.find(key) : object.end();
    if (!object.is_object() || it == object.end() || !it->is_array() || it->size() > max_items)
        return detail::json_member_error(key, "an array of whole numbers >= 0");
    out.reserve(it->size());
    for (auto& item : *it) {
        if (!detail::is_uint(item))
            return detail::json_member_error(key, "an array of whole numbers >= 0");
        out.push_back(item.get<std::uint64_t>());
    }
    return out;
}

} // namespace skein
