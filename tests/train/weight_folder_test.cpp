// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/train/weight_folder.hpp>

#include <tests/support/error_of.hpp>
#include <tests/support/memory_weights.hpp>
#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

namespace weight_folder_cases {

using namespace skein;
using namespace skein::train;
using skein::test::error_of;
using skein::test::memory_weights;
using skein::test::values_of;
using scratch = skein::test::temporary_folder;

std::vector<double> count_to(std::int64_t n) {
    std::vector<double> out(static_cast<std::size_t>(n));
    std::iota(out.begin(), out.end(), 0.0);
    return out;
}

std::vector<double> turned(const std::vector<double>& of, std::size_t rows, std::size_t columns) {
    std::vector<double> out;
    for (std::size_t c = 0; c < columns; ++c)
        for (std::size_t r = 0; r < rows; ++r) out.push_back(of[r * columns + c]);
    return out;
}

TEST_CASE("a source becomes one file, or shards with an index, and is read back") {
    scratch dir;
    posix_disk disk;
    memory_weights from;
    from.add("a", {5, 3}, count_to(15)).add("b", {}, {7}).add("n", {2}, {3, 4}, "I64");
    const auto one = export_safetensors(from, dir / "one/"); // a shell completes names so
    CHECK(one.path == dir / "one");
    CHECK(one.files == std::vector<std::string>{"model.safetensors"});
    CHECK(one.bytes == 60 + 4 + 16);
    const auto back = open_weights(disk, dir / "one");
    CHECK(back->tensors() == from.tensors());
    CHECK(values_of(*back, "a") == count_to(15));
    CHECK(values_of(*back, "n") == std::vector<double>{3, 4});

    const auto many = export_safetensors(from, dir / "many", {.max_shard = 40, .config = "{}"});
    CHECK(many.files.size() == 2); // a tensor that is larger alone has a file of its own
    CHECK(values_of(*open_weights(disk, dir / "many"), "a") == count_to(15));
    CHECK(dir.text("many/config.json") == "{}");
    // What is there is a source, too, and a copy has the same bytes.
    (void)export_safetensors(dir / "many", dir / "copy");
    CHECK(dir.text("copy/model.safetensors") == dir.text("one/model.safetensors"));
}

TEST_CASE("numbers of floating point are cast, whole ones are not") {
    scratch dir;
    posix_disk disk;
    memory_weights from;
    from.add("w", {3}, {1, 1.00390625, -2.5}).add("n", {1}, {300}, "I64");
    (void)export_safetensors(from, dir / "half", {.dtype = "BF16"});
    const auto back = open_weights(disk, dir / "half");
    CHECK(back->tensors().at("w").dtype == "BF16");
    CHECK(values_of(*back, "w") == std::vector<double>{1, 1, -2.5});
    CHECK(values_of(*back, "n") == std::vector<double>{300});
    CHECK(error_of([&] { (void)export_safetensors(from, dir / "x", {.dtype = "I8"}); }).code() ==
          errc::not_supported);
    CHECK(error_of([&] { (void)export_safetensors(from, dir / "half"); }).code() ==
          errc::already_exists);
    CHECK(error_of([&] { (void)export_safetensors(from, ""); }).code() == errc::invalid_argument);
    CHECK(std::distance(std::filesystem::directory_iterator(dir.path), {}) == 1);
}

TEST_CASE("a tensor that is turned round is written in blocks of its columns") {
    scratch dir;
    posix_disk disk;
    constexpr std::int64_t rows = 7, columns = 5;
    memory_weights from;
    from.add("w", {rows, columns}, count_to(rows * columns));
    from.add("one", {2, 3}, count_to(6)).add("two", {4, 3}, count_to(12));
    const planned_tensor plan{"t", "F32", {columns, rows}, true, {{"w", 0, rows, 0}}};
    const planned_tensor joined{"j", "F32", {3, 6}, true, {{"one", 0, 2, 0}, {"two", 0, 4, 2}}};
    auto both = count_to(6);
    for (const auto each : count_to(12)) both.push_back(each);
    for (const std::uint64_t block : {1u, 60u, 1000u}) { // one column at a time, two, all
        INFO(block);
        const auto path = dir / ("t" + std::to_string(block));
        auto out = disk.open(path, open_mode::create_new).value();
        train::detail::write_turned(*out, from, plan, block);
        train::detail::write_turned(*out, from, joined, block);
        out->close().value();
        const auto bytes = disk.read_whole(path).value();
        std::vector<double> values(bytes.size() / 4);
        read_values("F32", bytes, values);
        auto wanted = turned(count_to(rows * columns), rows, columns);
        for (const auto each : turned(both, 6, 3)) wanted.push_back(each);
        CHECK(values == wanted);
    }
}

TEST_CASE("a disk that is full leaves nothing of the folder") {
    scratch dir;
    if (!dir.mount_tmpfs("size=256k")) SKIP("needs root for a small file system");
    memory_weights from;
    from.add("w", {100'000}, count_to(100'000));
    CHECK(error_of([&] { (void)export_safetensors(from, dir / "out"); }).code() == errc::disk_full);
    CHECK(std::filesystem::is_empty(dir.path));
}

} // namespace weight_folder_cases
