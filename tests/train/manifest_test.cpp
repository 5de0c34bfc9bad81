// SPDX-License-Identifier: Apache-2.0
#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/train/manifest.hpp>
#include <skein/wire/json.hpp>

#include <catch2/catch_test_macros.hpp>

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
    CHECK(back.shards == m.shards);
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
    CHECK(parse(edited("skein-checkpoint-1", "skein-checkpoint-2")).error().code() ==
          errc::not_supported);
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
