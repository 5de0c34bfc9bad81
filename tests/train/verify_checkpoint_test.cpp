// SPDX-License-Identifier: Apache-2.0
#include <skein/core/posix_disk.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/verify_checkpoint.hpp>

#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace verify_checkpoint_cases {

using namespace skein;
using namespace skein::train;
using scratch = skein::test::temporary_folder;

constexpr std::size_t chunk = 1024;

/// A checkpoint of one shard of several chunks; gives its folder.
std::string save(const scratch& dir, std::uint64_t step) {
    posix_disk disk;
    std::vector<float> values(2000, float(step));
    checkpointer saver(disk, dir / "checkpoints", {.keep_last = 9, .chunk_bytes = chunk});
    return saver
        .save({.step = step,
               .tensors = {{.name = "model.w",
                            .dtype = "F32",
                            .shape = {2000},
                            .bytes = as_bytes(std::span(values))}}})
        .path;
}

const std::string shard = "/shard-0-of-1.safetensors";

void flip(const std::string& path, std::streamoff at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(at);
    file.put(byte);
}

bool says(const damaged_part& damage, const std::string& text) {
    INFO(damage.text);
    const bool found = damage.text.find(text) != std::string::npos;
    CHECK(found);
    return found;
}

TEST_CASE("a whole checkpoint has no damage, and all of its bytes were read") {
    scratch dir;
    posix_disk disk;
    const auto path = save(dir, 1);
    const auto seen = verify_checkpoint(disk, path);
    CHECK(seen.is_whole());
    CHECK(seen.bytes == std::filesystem::file_size(path + shard));
    CHECK(seen.chunks == (seen.bytes + chunk - 1) / chunk);
    CHECK(seen.manifest.value().step == 1);
}

TEST_CASE("every chunk that is damaged is named with its file") {
    scratch dir;
    posix_disk disk;
    const auto path = save(dir, 1);
    flip(path + shard, 2 * chunk);
    flip(path + shard, 5 * chunk + 17);
    const auto seen = verify_checkpoint(disk, path);
    REQUIRE(seen.damage.size() == 2);
    CHECK(seen.damage[0].file == path + shard);
    CHECK(seen.damage[0].chunk == 2);
    CHECK(seen.damage[1].chunk == 5);
    says(seen.damage[0], "chunk 2 (bytes 2048 to 3072) has checksum");
}

TEST_CASE("a shard that is short, long, gone or of another step is damage") {
    scratch dir;
    posix_disk disk;
    const auto path = save(dir, 1);
    const auto bytes = std::filesystem::file_size(path + shard);
    std::filesystem::resize_file(path + shard, bytes - 1);
    auto seen = verify_checkpoint(disk, path);
    REQUIRE(seen.damage.size() == 2); // its size, and the chunk that ends early
    says(seen.damage[0], "truncated");
    std::filesystem::resize_file(path + shard, bytes + 1);
    seen = verify_checkpoint(disk, path);
    REQUIRE(!seen.damage.empty());
    says(seen.damage[0], "too long");
    std::filesystem::resize_file(path + shard, 0);
    CHECK(verify_checkpoint(disk, path).damage.size() == 1);
    std::filesystem::remove(path + shard);
    CHECK(verify_checkpoint(disk, path).damage.size() == 1);
    const auto other = save(dir, 2);
    std::filesystem::copy_file(other + shard, path + shard);
    CHECK(verify_checkpoint(disk, path).damage.size() >= 7); // all with values
}

TEST_CASE("a manifest that is damaged, gone or of another folder is damage") {
    scratch dir;
    posix_disk disk;
    const auto path = save(dir, 1), other = save(dir, 2);
    for (const auto& name : {std::string("/manifest.json"), shard})
        std::filesystem::copy_file(other + name, path + name,
                                   std::filesystem::copy_options::overwrite_existing);
    auto seen = verify_checkpoint(disk, path);
    REQUIRE(seen.damage.size() == 1);
    says(seen.damage[0], "the manifest is of step 2");
    flip(path + "/manifest.json", 20);
    seen = verify_checkpoint(disk, path);
    REQUIRE(seen.damage.size() == 1);
    says(seen.damage[0], "checksum");
    CHECK_FALSE(seen.manifest.has_value());
    std::filesystem::remove(path + "/manifest.json");
    CHECK(verify_checkpoint(disk, path).damage.size() == 1);
}

} // namespace verify_checkpoint_cases
