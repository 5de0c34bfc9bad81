// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/train/safetensors.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>

using namespace skein;
using namespace skein::train;

namespace {

byte_buffer file_of(std::span<const tensor_view> tensors, const string_map& metadata = {}) {
    byte_buffer out;
    const auto plan = plan_safetensors(tensors, metadata).value();
    write_safetensors(plan, [&](byte_span part) {
        return append(out, part), result<void>();
    }).value();
    CHECK(out.size() == plan.file_bytes);
    return out;
}

/// A file with this header text and `data` bytes of data.
byte_buffer raw_file(std::string header, std::size_t data) {
    byte_buffer out(8);
    store_le<std::uint64_t>(out.data(), header.size());
    append(out, as_bytes(std::string_view(header)));
    out.resize(out.size() + data);
    return out;
}

errc refusal(const std::string& header, std::size_t data) {
    const auto file = raw_file(header, data);
    const auto parsed = parse_safetensors(file);
    INFO(header);
    REQUIRE_FALSE(parsed);
    return parsed.error().code();
}

const byte_buffer ten(10, std::byte{1}), eight(8, std::byte{2}), twelve(12, std::byte{3});

} // namespace

TEST_CASE("tensors come back with name, type, shape, bytes and the metadata") {
    const std::vector<tensor_view> tensors{{"b", "U8", {10}, ten},
                                           {"a", "F64", {}, eight},
                                           {"c", "F32", {3, 1}, twelve},
                                           {"none", "F32", {0, 3}, {}},
                                           {"quote\"\\", "U8", {2, 5}, ten}};
    const auto file = file_of(tensors, {{"format", "pt"}});
    const auto back = parse_safetensors(file).value();
    CHECK(back.metadata == string_map{{"format", "pt"}});
    REQUIRE(back.tensors.size() == tensors.size());
    for (auto& t : tensors) {
        auto it = std::find_if(back.tensors.begin(), back.tensors.end(),
                               [&](auto& b) { return b.name == t.name; });
        REQUIRE(it != back.tensors.end());
        CHECK(it->dtype == t.dtype);
        CHECK(it->shape == t.shape);
        CHECK(std::equal(it->bytes.begin(), it->bytes.end(), t.bytes.begin(), t.bytes.end()));
    }
}

TEST_CASE("the layout is the format's: padded header, data in order of alignment then name, each "
          "aligned") {
    const std::vector<tensor_view> tensors{
        {"z", "F64", {1}, eight}, {"b", "U8", {10}, ten}, {"a", "F32", {3}, twelve}};
    const auto file = file_of(tensors);
    const auto length = load_le<std::uint64_t>(file.data());
    CHECK(length % 8 == 0);
    CHECK(as_text(file).substr(8, 1) == "{");
    const auto header = parse_safetensors_head(file, file.size()).value();
    CHECK(header.data_offset == 8 + length);
    REQUIRE(header.tensors.size() == 3);
    CHECK(header.tensors[0].name == "z");
    CHECK(header.tensors[1].name == "a");
    CHECK(header.tensors[2].name == "b");
    for (auto& t : header.tensors) CHECK(t.offset % *dtype_size(t.dtype) == 0);
    CHECK(header.find("a")->bytes == 12);
    CHECK(header.find("q") == nullptr);
    CHECK(file == file_of(tensors)); // the same every time
}

TEST_CASE("a file without tensors is a file") {
    const auto file = file_of({});
    CHECK(parse_safetensors(file).value().tensors.empty());
}

TEST_CASE("what does not agree is not written") {
    auto code = [](std::vector<tensor_view> tensors) {
        const auto plan = plan_safetensors(tensors);
        REQUIRE_FALSE(plan);
        return plan.error().code();
    };
    CHECK(code({{"a", "F32", {3}, ten}}) == errc::invalid_argument);
    CHECK(code({{"a", "F33", {3}, twelve}}) == errc::invalid_argument);
    CHECK(code({{"a", "F32", {-3}, twelve}}) == errc::invalid_argument);
    CHECK(code({{"a", "U8", {10}, ten}, {"a", "U8", {10}, ten}}) == errc::invalid_argument);
    CHECK(code({{"__metadata__", "U8", {10}, ten}}) == errc::invalid_argument);
}

TEST_CASE("the first error of the sink ends the writing") {
    const std::vector<tensor_view> tensors{{"a", "U8", {10}, ten}, {"b", "U8", {10}, ten}};
    const auto plan = plan_safetensors(tensors).value();
    int calls = 0;
    const auto done = write_safetensors(plan, [&](byte_span) -> result<void> {
        if (++calls == 2) return error(errc::disk_full, "full");
        return {};
    });
    CHECK(done.error().code() == errc::disk_full);
    CHECK(calls == 2);
}

TEST_CASE("holes, overlaps, wrong sizes, wrong types and cut files are refused with a reason") {
    const std::string good =
        R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})";
    CHECK(parse_safetensors(raw_file(good, 8)));
    CHECK(refusal(good, 7) == errc::malformed);
    CHECK(refusal(good, 9) == errc::malformed);
    auto with = [&](std::string from, std::string to) {
        auto text = good;
        text.replace(text.find(from), from.size(), to);
        return text;
    };
    CHECK(refusal(with("[4,8]", "[5,9]"), 9) == errc::malformed); // hole
    CHECK(refusal(with("[4,8]", "[3,7]"), 7) == errc::malformed); // overlap
    CHECK(refusal(with("[4,8]", "[8,4]"), 8) == errc::malformed); // backwards
    CHECK(refusal(with("[4,8]", "[4,8,9]"), 8) == errc::malformed);
    CHECK(refusal(with("[4,8]", "[4]"), 8) == errc::malformed);
    CHECK(refusal(with("[4,8]", "[4,18446744073709551615]"), 8) == errc::malformed);
    CHECK(refusal(with("\"shape\":[4]", "\"shape\":[5]"), 8) == errc::malformed);
    CHECK(refusal(with("\"shape\":[4]", "\"shape\":[-4]"), 8) == errc::malformed);
    CHECK(refusal(with("\"shape\":[4]", "\"shape\":4"), 8) == errc::malformed);
    CHECK(refusal(with("\"shape\":[4]", "\"shape\":[4294967296,4294967296,4]"), 8) ==
          errc::malformed);
    CHECK(refusal(with("\"dtype\":\"U8\"", "\"dtype\":\"Q8\""), 8) == errc::malformed);
    CHECK(refusal(with("\"dtype\":\"U8\",", ""), 8) == errc::malformed);
    CHECK(refusal(with("\"b\":", "\"a\":"), 8) == errc::malformed);  // the name twice
    CHECK(refusal(with("{\"a\"", " {\"a\""), 8) == errc::malformed); // must begin with '{'
    CHECK(refusal("{\"a\"", 8) == errc::malformed);
    CHECK(refusal("[]", 0) == errc::malformed);
    CHECK(refusal(R"({"__metadata__":{"k":1}})", 0) == errc::malformed);
    CHECK(refusal(R"({"__metadata__":"k"})", 0) == errc::malformed);
    CHECK(refusal("", 0) == errc::malformed);
}

TEST_CASE("a length from outside allocates nothing") {
    byte_buffer file(16);
    store_le<std::uint64_t>(file.data(), max_safetensors_header + 1);
    CHECK(parse_safetensors(file).error().code() == errc::too_large);
    store_le<std::uint64_t>(file.data(), 9);
    CHECK(parse_safetensors(file).error().code() == errc::malformed);
    store_le<std::uint64_t>(file.data(), UINT64_MAX);
    CHECK(parse_safetensors(file).error().code() == errc::too_large);
    for (std::size_t n = 0; n < 8; ++n) CHECK_FALSE(parse_safetensors(byte_span(file).first(n)));
}

TEST_CASE("a file cut off at any byte is refused") {
    const std::vector<tensor_view> tensors{{"b", "U8", {10}, ten}, {"a", "F64", {1}, eight}};
    const auto file = file_of(tensors, {{"k", "v"}});
    for (std::size_t length = 0; length < file.size(); ++length)
        REQUIRE_FALSE(parse_safetensors(byte_span(file).first(length)));
}
