// SPDX-License-Identifier: Apache-2.0
#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/train/manifest.hpp>
#include <skein/wire/json.hpp>

#include <catch2/catch_test_macros.hpp>

#include <fmt/core.h>

#include <limits>

using namespace skein;
using namespace skein::train;

namespace {

checkpoint_manifest sample() {
    checkpoint_manifest m;
    m.step = 120;
    m.world_size = 2;
    m.chunk_bytes = 10;
    m.shards = {{"shard-0-of-2.safetensors", 25, {1, 2, 3}}, {"shard-1-of-2.safetensors", 0, {}}};
    m.tensors = {{"w", {"F32", {5, 2}, {{1, 0, 2}, {0, 2, 3}}}},
                 {"scalar", {"I64", {}, {{1, 0, 1}}}},
                 {"none", {"F32", {0, 4}, {{0, 0, 0}}}}};
    m.metrics = {{"val_loss", 0.1}, {"broken", std::numeric_limits<double>::infinity()}};
    m.extra = R"({"sampler":{"epoch":3}})";
    m.config_hash = "00ff";
    m.wall_time = 1.75e9;
    return m;
}

result<checkpoint_manifest> parse(const std::string& text) {
    return parse_manifest(as_bytes(std::string_view(text)));
}

/// The text with one replacement and a right checksum again.
std::string edited(std::string_view from, std::string_view to) {
    auto text = dump_manifest(sample());
    text.resize(text.size() - train::detail::manifest_tail.size());
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    return text + train::detail::make_manifest_tail(text);
}

} // namespace

TEST_CASE("a manifest comes back as it was written, and is plain JSON for everybody else") {
    const auto m = sample();
    const auto text = dump_manifest(m);
    CHECK(text == dump_manifest(m));
    CHECK(skein::parse_json(std::string_view(text)));
    const auto back = parse(text).value();
    CHECK(back.step == 120);
    CHECK(back.world_size == 2);
    CHECK(back.chunk_bytes == 10);
    CHECK(back.version == 2);
    CHECK(back.shards == m.shards);
    CHECK(back.tensors == m.tensors);
    CHECK(back.metrics == std::map<std::string, double>{{"val_loss", 0.1}}); // infinity is left out
    CHECK(back.extra == m.extra);
    CHECK(back.config_hash == "00ff");
    CHECK(back.wall_time == 1.75e9);
    CHECK(back.skein_version == SKEIN_VERSION_STRING);
}

TEST_CASE("any flipped bit and any missing byte of a manifest is found") {
    const auto text = dump_manifest(sample());
    for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
        auto bad = text;
        bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
        INFO("bit " << bit);
        REQUIRE_FALSE(parse(bad));
    }
    for (std::size_t length = 0; length < text.size(); ++length)
        REQUIRE_FALSE(parse(text.substr(0, length)));
}

TEST_CASE("fields out of range are malformed even under a right checksum") {
    CHECK(parse(edited("\"step\": 120", "\"step\": 121")));
    const std::pair<const char*, const char*> edits[] = {
        {"\"step\": 120", "\"step\": -1"},
        {"\"world_size\": 2", "\"world_size\": 0"},
        {"\"chunk_bytes\": 10", "\"chunk_bytes\": 0"},
        {"\"bytes\": 25", "\"bytes\": 35"},
        {"shard-0-of-2.safetensors", "../shard-0-of-2.safetensors"},
        {"shard-0-of-2.safetensors", "/etc/passwd"},
        {"\"extra\"", "\"extras\""},
        {"\"shards\"", "\"shreds\""},
        {"\"config_hash\": \"00ff\"", "\"config_hash\": 0"},
    };
    for (auto& [from, to] : edits) {
        const auto parsed = parse(edited(from, to));
        INFO(to);
        REQUIRE_FALSE(parsed);
        CHECK(parsed.error().code() == errc::malformed);
    }
    CHECK(parse(edited("skein-checkpoint-2", "skein-checkpoint-3")).error().code() ==
          errc::not_supported);
}

TEST_CASE("a manifest of format 1 has no table of tensors and is read without one") {
    const auto old = parse(edited("skein-checkpoint-2", "skein-checkpoint-1")).value();
    CHECK(old.version == 1);
    CHECK(old.tensors.empty());
    CHECK(old.shards == sample().shards);
}

TEST_CASE("the table of tensors is refused, by name, unless every row is in one part") {
    const std::string parts = "\"parts\": [\n        {\n          \"first_row\": 0,\n"
                              "          \"rows\": 2,\n          \"shard\": 1\n        }";
    const auto last = [](const char* first, const char* rows, const char* shard) {
        return fmt::format("\"first_row\": {},\n          \"rows\": {},\n          \"shard\": {}",
                           first, rows, shard);
    };
    const auto good = last("2", "3", "0");
    CHECK(parse(edited(good, good)));
    const std::pair<std::string, std::string> edits[] = {
        {good, last("2", "2", "0")},                    // a gap at the end
        {good, last("3", "2", "0")},                    // and in the middle
        {good, last("1", "4", "0")},                    // overlap
        {good, last("2", "4", "0")},                    // beyond the end
        {good, last("2", "9223372036854775807", "0")},  // the sum does not fit
        {good, last("2", "18446744073709551615", "0")}, // nor the number
        {good, last("-1", "3", "0")},
        {good, last("2", "0", "0")},
        {good, last("2", "3", "1")}, // two parts in one shard
        {good, last("2", "3", "2")}, // of two shards
        {good, last("2", "3", "18446744073709551615")},
        {good, last("2.5", "3", "0")},
        {good, last("2", "3", "\"0\"")},
        {parts, "\"parts\": [1"},
        {parts, "\"part\": [1"},
        {"5,\n        2", "5,\n        9223372036854775807"},
        {"5,\n        2", "5,\n        -2"},
        {"5,\n        2", "6,\n        2"},
        {"\"dtype\": \"F32\",\n      \"parts\": [\n        {\n          \"first_row\": 0,\n"
         "          \"rows\": 2",
         "\"dtype\": \"F33\",\n      \"parts\": [\n        {\n          \"first_row\": 0,\n"
         "          \"rows\": 2"},
    };
    for (auto& [from, to] : edits) {
        const auto parsed = parse(edited(from, to));
        INFO(to);
        REQUIRE_FALSE(parsed);
        CHECK(parsed.error().code() == errc::malformed);
        CHECK(parsed.error().text().find("tensor 'w'") != std::string::npos);
    }
    CHECK_FALSE(parse(edited("\"tensors\"", "\"tensor\"")));
}

TEST_CASE("checksums per chunk do not depend on how the bytes arrive") {
    byte_buffer bytes(1000);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
    chunk_checksums whole(64);
    whole.add(bytes);
    const auto wanted = whole.finish();
    CHECK(whole.bytes() == 1000);
    REQUIRE(wanted.size() == 16);
    CHECK(wanted[0] == crc32c(byte_span(bytes).first(64)));
    CHECK(wanted[15] == crc32c(byte_span(bytes).subspan(960)));
    for (std::size_t piece : {1, 63, 64, 65, 999}) {
        chunk_checksums sums(64);
        for (std::size_t at = 0; at < bytes.size(); at += piece)
            sums.add(byte_span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
        CHECK(sums.finish() == wanted);
    }
}
