// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/train/weight_source.hpp>

#include <tests/support/error_of.hpp>
#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/core.h>

using namespace skein;
using namespace skein::train;
using scratch = skein::test::temporary_folder;

namespace weight_source_cases {

using skein::test::error_of;

void write_text(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

struct named_floats {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
};

void write_weights(const std::string& path, const std::vector<named_floats>& tensors) {
    std::vector<tensor_view> views;
    for (const auto& t : tensors)
        views.push_back({t.name, "F32", t.shape, as_bytes(std::span(t.values))});
    std::string text;
    write_safetensors(plan_safetensors(views).value(), [&](byte_span part) {
        text.append(as_text(part));
        return result<void>();
    }).value();
    write_text(path, text);
}

/// A file with this header and so many bytes of data.
void write_header(const std::string& path, const std::string& header, std::size_t data) {
    std::string text(8, '\0');
    store_le<std::uint64_t>(reinterpret_cast<std::byte*>(text.data()), header.size());
    write_text(path, text + header + std::string(data, '\0'));
}

std::vector<float> read_floats(const weight_source& from, const std::string& name,
                               std::int64_t first, std::int64_t rows, std::size_t count) {
    std::vector<float> out(count, -1);
    from.read(name, first, rows, as_writable_bytes(std::span(out)));
    return out;
}

bool says(const error& why, std::string_view text) {
    INFO(why.what());
    const bool found = std::string_view(why.what()).find(text) != std::string_view::npos;
    CHECK(found);
    return found;
}

const std::vector<named_floats> first{{"a", {3, 2}, {1, 2, 3, 4, 5, 6}}};
const std::vector<named_floats> second{{"b", {}, {7}}, {"c", {2}, {8, 9}}};

void write_folder(const std::string& folder) {
    write_weights(folder + "/model-1.safetensors", first);
    write_weights(folder + "/model-2.safetensors", second);
    write_text(folder + "/model.safetensors.index.json",
               R"({"metadata": {"total_size": 36}, "weight_map": {"a": "model-1.safetensors",
                   "b": "model-2.safetensors", "c": "model-2.safetensors"}})");
}

/// A file of a rank, as DCP's writer makes it: rows, and where they begin.
void write_shard(const std::string& path, const std::string& header_of_tensors,
                 const std::string& offsets, const std::vector<float>& values) {
    std::string info;
    for (const char c : offsets) info += c == '"' ? std::string("\\\"") : std::string(1, c);
    std::string header = R"({"__metadata__":{"format":"pt","DCP_SHARDING_INFO":")" + info +
                         R"("},)" + header_of_tensors + "}";
    std::string text(8, '\0');
    store_le<std::uint64_t>(reinterpret_cast<std::byte*>(text.data()), header.size());
    write_text(path, text + header + std::string(as_text(as_bytes(std::span(values)))));
}

TEST_CASE("a folder with a file of each rank is one source: rows are put together") {
    scratch dir;
    posix_disk disk;
    std::filesystem::create_directory(dir.path + "/dcp");
    const auto path = [&](int rank) {
        return fmt::format("{}/dcp/shard-{:05}-model-00001-of-00001.safetensors", dir.path, rank);
    };
    const auto write_first = [&] {
        write_shard(path(1),
                    R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                    R"("s":{"dtype":"F32","shape":[],"data_offsets":[16,20]})",
                    R"({"w":{"saved_offsets":[0,0]},"s":{"saved_offsets":[]}})", {1, 2, 3, 4, 9});
    };
    const auto write_second = [&](const std::string& shape, const std::string& offsets) {
        write_shard(path(2), R"("w":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,8]})",
                    R"({"w":{"saved_offsets":)" + offsets + "}}", {5, 6});
    };
    write_first();
    write_second("[1,2]", "[2,0]");
    for (const auto& from : {"hf:" + dir.path + "/dcp", dir.path + "/dcp"}) {
        const auto source = open_weights(disk, from);
        CHECK(source->tensors() == source_table{{"s", {"F32", {}}}, {"w", {"F32", {3, 2}}}});
        CHECK(read_floats(*source, "w", 0, 3, 6) == std::vector<float>{1, 2, 3, 4, 5, 6});
        CHECK(read_floats(*source, "w", 1, 2, 4) == std::vector<float>{3, 4, 5, 6});
        CHECK(read_floats(*source, "w", 2, 1, 2) == std::vector<float>{5, 6});
        CHECK(read_floats(*source, "s", 0, 1, 1) == std::vector<float>{9});
    }
    const auto why = [&] { return error_of([&] { (void)open_weights(disk, dir.path + "/dcp"); }); };
    write_second("[1,2]", "[3,0]");
    CHECK(says(why(), "rows 2 to 2 of tensor 'w' are in no file"));
    write_second("[1,2]", "[1,0]");
    CHECK(says(why(), "rows 1 to 1 of tensor 'w' are in two files"));
    write_second("[2,1]", "[0,2]"); // columns
    CHECK(says(why(), "does not give the first row of tensor 'w'"));
    CHECK(says(why(), "shard-00002"));
    write_second("[1,1,2]", "[2,0,0]");
    CHECK(says(why(), "tensor 'w' is F32 [2, 2] in one file and F32 [1, 1, 2] in another"));
    std::filesystem::remove(path(1));
    write_second("[1,2]", "[2,0]");
    CHECK(says(why(), "rows 0 to 1 of tensor 'w' are in no file"));
    write_weights(path(2), {{"w", {1, 2}, {5, 6}}});
    CHECK(says(why(), "has no DCP_SHARDING_INFO"));
    write_text(path(2), "short");
    CHECK(why().code() != errc::unknown);
    write_weights(dir.path + "/dcp/model.safetensors", second); // whole: it counts
    CHECK(open_weights(disk, dir.path + "/dcp")->tensors().contains("b"));
}

TEST_CASE("a safetensors file tells its tensors and gives any rows of them") {
    scratch dir;
    posix_disk disk;
    write_weights(dir / "one.safetensors", first);
    const auto from = open_weights(disk, dir / "one.safetensors");
    CHECK(from->path() == dir / "one.safetensors");
    CHECK(from->tensors() == source_table{{"a", {"F32", {3, 2}}}});
    CHECK(read_floats(*from, "a", 1, 2, 4) == std::vector<float>{3, 4, 5, 6});
    CHECK(read_floats(*from, "a", 3, 0, 0).empty());
    CHECK(error_of([&] { read_floats(*from, "x", 0, 1, 2); }).code() == errc::not_found);
    CHECK(error_of([&] { read_floats(*from, "a", 2, 2, 4); }).code() == errc::invalid_argument);
    CHECK(error_of([&] { read_floats(*from, "a", 0, 1, 3); }).code() == errc::invalid_argument);
    std::filesystem::resize_file(dir / "one.safetensors",
                                 std::filesystem::file_size(dir / "one.safetensors") - 1);
    says(error_of([&] { read_floats(*from, "a", 2, 1, 2); }), "cut off after 7 of 8");
}

TEST_CASE("a folder of Hugging Face's is one file, or the shards that its index names") {
    scratch dir;
    posix_disk disk;
    write_folder(dir.path);
    for (const auto& given : {"hf:" + dir.path, dir.path}) {
        const auto from = open_weights(disk, given);
        CHECK(from->tensors().size() == 3);
        CHECK(read_floats(*from, "a", 2, 1, 2) == std::vector<float>{5, 6});
        CHECK(read_floats(*from, "b", 0, 1, 1) == std::vector<float>{7});
        CHECK(read_floats(*from, "c", 1, 1, 1) == std::vector<float>{9});
    }
    scratch single;
    write_weights(single / "model.safetensors", second);
    CHECK(open_weights(disk, "hf:" + single.path)->tensors().size() == 2);
    scratch empty;
    const auto why = error_of([&] { (void)open_weights(disk, "hf:" + empty.path); });
    CHECK(why.code() == errc::not_found);
    says(why, "model.safetensors.index.json");
    says(why, "not supported: pickled weights");
}

TEST_CASE("an index names files of its own folder alone, and agrees with them") {
    scratch dir;
    posix_disk disk;
    const auto index_says = [&](const std::string& text) {
        write_text(dir / "model.safetensors.index.json", text);
        return error_of([&] { (void)open_weights(disk, "hf:" + dir.path); });
    };
    const auto file_of_a = [&](const std::string& file) {
        return index_says(R"({"weight_map": {"a": ")" + file + R"("}})");
    };
    write_folder(dir.path);
    for (const std::string outside :
         {"../model-1.safetensors", "/etc/model.safetensors", "sub/model.safetensors", "..",
          "model.bin", ".safetensors", "model\\u0000.safetensors", ""}) {
        INFO(outside);
        const auto why = file_of_a(outside);
        CHECK(why.code() == errc::malformed);
        says(why, "no safetensors file of this folder");
    }
    CHECK(file_of_a(std::string(300, 'x') + ".safetensors").code() == errc::malformed);
    CHECK(file_of_a("model-3.safetensors").code() == errc::not_found);

    says(file_of_a("model-2.safetensors"), "has tensor 'b', which is in no file by the index");
    says(index_says(R"({"weight_map": {"a": "model-1.safetensors", "z": "model-1.safetensors"}})"),
         "tensor 'z' is in model-1.safetensors, which does not have it");
    says(index_says(R"({"weight_map": {"a": "model-1.safetensors", "a": "model-2.safetensors"}})"),
         "twice");
    CHECK(index_says("{}").code() == errc::malformed);
    CHECK(index_says("[1]").code() == errc::malformed);
    CHECK(index_says(R"({"weight_map": {"a": 1}})").code() == errc::malformed);
    CHECK(index_says(R"({"weight_map": {"a": )").code() == errc::malformed);
    CHECK(index_says(std::string(100, '[')).code() == errc::too_large);
    std::string many = R"({"weight_map": {)";
    for (int i = 0; i < 1001; ++i)
        many += (i == 0 ? "\"" : ", \"") + std::to_string(i) + "\": \"" + std::to_string(i) +
                ".safetensors\"";
    says(index_says(many + "}}"), "1001 files");
    const auto long_name = index_says(R"({"weight_map": {")" + std::string(2000, 'n') +
                                      R"(": "model-1.safetensors"}})");
    CHECK(long_name.code() == errc::too_large);
    says(long_name, "has 2000 characters");
}

TEST_CASE("a shard that is damaged is told with its file and what is wrong") {
    scratch dir;
    posix_disk disk;
    const auto path = dir / "model.safetensors";
    const auto opening = [&] {
        return error_of([&] { (void)open_weights(disk, "hf:" + dir.path); });
    };
    const auto header_says = [&](const std::string& header, std::size_t data) {
        write_header(path, header, data);
        const auto why = opening();
        says(why, path);
        return why;
    };
    const auto tensor = [](const std::string& name, int begin, int end) {
        return "\"" + name + R"(": {"dtype": "U8", "shape": [)" + std::to_string(end - begin) +
               R"(], "data_offsets": [)" + std::to_string(begin) + ", " + std::to_string(end) +
               "]}";
    };
    says(header_says("{" + tensor("a", 0, 4) + "," + tensor("b", 6, 8) + "}", 8), "hole");
    says(header_says("{" + tensor("a", 0, 4) + "," + tensor("b", 2, 8) + "}", 8), "overlap");
    says(header_says("{" + tensor("a", 0, 4) + "," + tensor("a", 4, 8) + "}", 8), "twice");
    says(header_says("{" + tensor("a", 0, 8) + "}", 7), "truncated");
    says(header_says("{" + tensor("a", 0, 8) + "}", 9), "left over");
    says(header_says("{" + tensor(std::string(5000, 'n'), 0, 8) + "}", 8), "5000 characters");
    says(header_says("", 8), "does not begin");

    std::string head(8, '\0');
    store_le<std::uint64_t>(reinterpret_cast<std::byte*>(head.data()), 100'000'001);
    write_text(path, head + "{}"); // nothing of such a size is set aside
    CHECK(opening().code() == errc::too_large);
    store_le<std::uint64_t>(reinterpret_cast<std::byte*>(head.data()), 90'000'000);
    write_text(path, head + "{}");
    says(opening(), "claims 90000000 bytes");
    write_text(path, "1234");
    says(opening(), "too short");
}

TEST_CASE("a checkpoint of ours gives its weights under the module's names, or their averages") {
    scratch dir;
    posix_disk disk;
    const std::vector<float> w{1, 2, 3, 4}, moment{5, 6, 7, 8}, average{9, 10, 11, 12};
    checkpointer saver(disk, dir / "checkpoints");
    const auto part = [&](const std::string& name, const std::vector<float>& values) {
        return tensor_part{
            .name = name, .dtype = "F32", .shape = {2, 2}, .bytes = as_bytes(std::span(values))};
    };
    checkpoint_state state{.step = 3,
                           .tensors = {part("model.w", w), part("optim.exp_avg.w", moment)}};
    (void)saver.save(state);
    const auto from = open_weights(disk, dir.path);
    CHECK(from->tensors() == source_table{{"w", {"F32", {2, 2}}}});
    CHECK(read_floats(*from, "w", 1, 1, 2) == std::vector<float>{3, 4});
    CHECK(error_of([&] { (void)open_weights(disk, dir.path, {.average = true}); }).code() ==
          errc::not_found);

    state.step = 4;
    state.tensors.push_back(part("optim.ema.w", average));
    (void)saver.save(state);
    CHECK(read_floats(*open_weights(disk, dir.path, {.average = true}), "w", 0, 1, 2) ==
          std::vector<float>{9, 10});
}

} // namespace weight_source_cases
