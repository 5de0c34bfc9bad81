// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/export_weights.hpp>
#include <skein/train/weights.hpp>

#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace export_weights_cases {

using namespace skein;
using namespace skein::train;
using scratch = skein::test::temporary_folder;

struct parts : torch::nn::Module {
    parts()
        : w(register_parameter("w", torch::rand({5, 3}))),
          square(register_parameter("square", torch::rand({4, 4}))),
          joined(register_parameter("joined", torch::rand({6, 2}))),
          low(register_parameter("low", torch::rand({2}))),
          high(register_parameter("high", torch::rand({2}))),
          count(register_buffer("count", torch::tensor(7))) {
        register_parameter("again", w); // tied
    }
    torch::Tensor w, square, joined, low, high, count;
};

weight_map map_of_parts() {
    weight_map map;
    map.turned("t.w", "w")
        .turned("t.square", "square")
        .joined({"q", "k"}, "joined", {2, 1})
        .split("halves", {"low", "high"});
    return map;
}

bool equal(const parts& a, const parts& b) {
    return torch::equal(a.w, b.w) && torch::equal(a.square, b.square) &&
           torch::equal(a.joined, b.joined) && torch::equal(a.low, b.low) &&
           torch::equal(a.high, b.high) && torch::equal(a.count, b.count);
}

errc refusal(const std::function<void()>& call) {
    try {
        call();
    } catch (const error& why) {
        return why.code();
    }
    return errc::unknown;
}

TEST_CASE("what is exported by a map is loaded by it, from one file and from several") {
    scratch dir;
    posix_disk disk;
    parts from, into;
    const auto one = export_safetensors(from, dir / "one", {.map = map_of_parts()});
    CHECK(one.files == std::vector<std::string>{"model.safetensors"});
    CHECK(one.bytes == (15 + 16 + 12 + 4) * 4 + 8);
    const auto stored = open_weights(disk, "hf:" + (dir / "one"));
    CHECK(stored->tensors().at("t.w").shape == std::vector<std::int64_t>{3, 5});
    CHECK(stored->tensors().at("q").shape == std::vector<std::int64_t>{4, 2});
    CHECK(stored->tensors().size() == 6); // the tied one once
    load_weights(into, "hf:" + (dir / "one"), map_of_parts());
    CHECK(equal(from, into));

    const auto many = export_safetensors(from, dir / "many",
                                         {.max_shard = 64, .map = map_of_parts(), .config = "{}"});
    CHECK(many.files.size() == 4);
    CHECK(std::filesystem::exists(dir / "many/model.safetensors.index.json"));
    CHECK(dir.text("many/config.json") == "{}");
    parts again;
    load_weights(again, "hf:" + (dir / "many"), map_of_parts());
    CHECK(equal(from, again));
    // From one folder to another: what is there is a source, too.
    (void)export_safetensors("hf:" + (dir / "one"), dir / "copy");
    CHECK(dir.text("copy/model.safetensors") == dir.text("one/model.safetensors"));
}

TEST_CASE("an export casts when told, replaces nothing and leaves nothing half done") {
    scratch dir;
    parts from, into;
    (void)export_safetensors(from, dir / "half", {.dtype = "BF16"});
    load_weights(into, dir / "half");
    CHECK(torch::equal(into.w, from.w.to(torch::kBFloat16).to(torch::kFloat)));
    CHECK(into.count.item<std::int64_t>() == 7); // no number of floating point
    CHECK(refusal([&] { (void)export_safetensors(from, dir / "half"); }) == errc::already_exists);
    CHECK(refusal([&] { (void)export_safetensors(from, dir / "x", {.dtype = "I8"}); }) ==
          errc::not_supported);
    weight_map odd;
    odd.joined({"a", "b"}, "w");
    CHECK(refusal([&] { (void)export_safetensors(from, dir / "x", {.map = odd}); }) ==
          errc::mismatch);
    CHECK_FALSE(std::filesystem::exists(dir / "x"));
    CHECK_FALSE(std::filesystem::exists(dir / "x.part"));
}

} // namespace export_weights_cases
