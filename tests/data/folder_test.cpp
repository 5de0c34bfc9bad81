// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/data/arena.hpp>
#include <skein/data/detail/folder_index.hpp>
#include <skein/data/detail/folder_listing.hpp>
#include <skein/data/folder.hpp>
#include <skein/data/loader.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include "support/no_free_descriptors.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace folder_test {

using namespace skein;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using test::temporary_folder;
namespace fs = std::filesystem;

void put(const temporary_folder& in, const std::string& name, const std::string& content) {
    fs::create_directories(fs::path(in / name).parent_path());
    std::ofstream(in / name, std::ios::binary) << content;
}
data::folder_options kept_in(const temporary_folder& cache) { return {.index_folder = cache.path}; }

std::vector<std::string> paths_of(const data::image_folder& all) {
    std::vector<std::string> paths;
    for (std::uint64_t i = 0; i < all.size(); ++i) paths.push_back(all.locate(i).path);
    return paths;
}
std::string read_text(const data::image_folder& from, std::uint64_t sample) {
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto file = from.reader().read(from.locate(sample));
    return skein::to_string(byte_span(file.content));
}

TEST_CASE("classes and samples are numbered as torchvision numbers them") {
    const temporary_folder root, cache;
    // What ImageFolder of torchvision 0.26 gives for these names, in this order.
    for (const auto* name :
         {"b/2.png", "b/a/x/1.png", "b/10.JPG", "b/a/1.jpeg", "b/a-b/1.webp", "b/a/0.jpg",
          "a/x.jpg", "a/notes.txt", "Z/1.bmp", "a/.jpg", "a/\xc3\xa4.jpg"})
        put(root, name, name);
    put(root, "stray.jpg", "not in a class");
    const data::image_folder all(root.path, kept_in(cache));
    CHECK(all.classes() == std::vector<std::string>{"Z", "a", "b"});
    // '-' sorts before '/': the folder "a-b" stands before "a/x", and after "a".
    CHECK(paths_of(all) == std::vector<std::string>{"Z/1.bmp", "a/.jpg", "a/x.jpg",
                                                    "a/\xc3\xa4.jpg", "b/10.JPG", "b/2.png",
                                                    "b/a/0.jpg", "b/a/1.jpeg", "b/a-b/1.webp",
                                                    "b/a/x/1.png"});
    CHECK(all.locate(0).label == 0);
    CHECK(all.locate(9).label == 2);
    CHECK(read_text(all, 3) == "a/\xc3\xa4.jpg");
    CHECK_THAT(all.describe(), ContainsSubstring("10 files of 3 classes"));
}

TEST_CASE("an index is used while nothing has changed, and made again when a folder has") {
    const temporary_folder root, cache;
    put(root, "a/1.jpg", "one");
    put(root, "b/c/2.jpg", "two");
    const auto index_file = [&] {
        for (const auto& each : fs::directory_iterator(cache.path))
            if (each.path().extension() == ".folder") return each.path().string();
        return std::string();
    };
    const auto first = data::image_folder(root.path, kept_in(cache)).describe();
    REQUIRE(!index_file().empty());
    CHECK((fs::status(index_file()).permissions() & fs::perms::mask) ==
          (fs::perms::owner_read | fs::perms::owner_write));
    // An index that was made in the moment in which its folders changed is not trusted; this one is
    // told to be of a later time.
    auto listing = data::detail::list_classes(fs::canonical(root.path).string());
    listing.begun += 10'000;
    listing.classes[0] = "known by the index";
    const auto bytes = data::detail::encode_index(listing, fs::canonical(root.path).string());
    std::ofstream(index_file(), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    CHECK(data::image_folder(root.path, kept_in(cache)).classes()[0] == "known by the index");
    SECTION("a new file in a folder of a folder") {
        put(root, "b/c/3.jpg", "three");
        const data::image_folder again(root.path, kept_in(cache));
        CHECK(again.classes()[0] == "a");
        CHECK(again.size() == 3);
        CHECK(again.describe() != first);
    }
    SECTION("a file that is gone") {
        fs::remove(root / "b/c/2.jpg");
        put(root, "b/2.jpg", "two");
        CHECK(paths_of(data::image_folder(root.path, kept_in(cache))).back() == "b/2.jpg");
    }
    SECTION("a folder that was put into the place of another one") {
        fs::rename(root / "a", root / "x");
        put(root, "a/9.jpg", "nine");
        fs::remove_all(root / "x");
        CHECK(paths_of(data::image_folder(root.path, kept_in(cache))).front() == "a/9.jpg");
    }
    SECTION("a damaged index, at every byte") {
        for (std::size_t at = 0; at < bytes.size(); at += 7) {
            auto wrong = bytes;
            wrong[at] ^= std::byte{0x10};
            CHECK_FALSE(data::detail::folder_index::parse(wrong, nullptr));
            CHECK_FALSE(data::detail::folder_index::parse(byte_span(bytes).first(at), nullptr));
        }
        fs::resize_file(index_file(), bytes.size() / 2);
        CHECK(data::image_folder(root.path, kept_in(cache)).classes()[0] == "a");
    }
    SECTION("nowhere to keep it") {
        put(cache, "no-folder", "");
        CHECK(data::image_folder(root.path, {.index_folder = cache / "no-folder/x"}).describe() ==
              first);
    }
}

TEST_CASE("processes that start together all have the index of one") {
    const temporary_folder root, cache;
    for (int i = 0; i < 200; ++i)
        put(root, "c" + std::to_string(i % 10) + "/" + std::to_string(i) + ".jpg", "x");
    std::vector<std::string> seen(8);
    std::vector<std::thread> ranks;
    for (auto& mine : seen)
        ranks.emplace_back(
            [&] { mine = data::image_folder(root.path, kept_in(cache)).describe(); });
    for (auto& rank : ranks) rank.join();
    CHECK(std::ranges::count(seen, seen[0]) == 8);
    CHECK_THAT(seen[0], ContainsSubstring("200 files of 10 classes"));
}

TEST_CASE("a folder that is none of classes says what it is") {
    const temporary_folder root, cache;
    const auto message = [&](const std::string& folder) {
        try {
            const data::image_folder made(folder, kept_in(cache));
        } catch (const error& e) {
            return std::string(e.what());
        }
        return std::string("no error");
    };
    CHECK_THAT(message(root / "no"), ContainsSubstring("image_folder " + root.path + "/no"));
    CHECK_THAT(message("no/such"), ContainsSubstring("it is looked for in /"));
    CHECK_THAT(message(root.path), ContainsSubstring("no folders, so no classes") &&
                                       ContainsSubstring("a folder for each class"));
    put(root, "1.jpg", "");
    CHECK_THAT(message(root.path), ContainsSubstring("1 pictures stand in the folder itself"));
    CHECK_THAT(message(root / "1.jpg"), ContainsSubstring("1.jpg"));
    put(root, "train/cat/1.jpg", "");
    put(root, "val/cat/1.jpg", "");
    CHECK_THAT(message(root.path),
               ContainsSubstring("would be taken for classes") && ContainsSubstring("/train'"));
    CHECK_THAT(message(root / "train"), ContainsSubstring("no error"));
    fs::create_directories(root / "train/.ipynb_checkpoints");
    CHECK_THAT(message(root / "train"),
               ContainsSubstring("classes without pictures: '.ipynb_checkpoints'"));
    fs::remove(root / "train/.ipynb_checkpoints");
    fs::create_directory_symlink("../../val/cat", root / "train/cat/more");
    CHECK_THAT(message(root / "train"), ContainsSubstring("no error"));
    fs::create_directory_symlink("..", root / "train/cat/up");
    CHECK_THAT(message(root / "train"), ContainsSubstring("a link leads back"));
}

TEST_CASE("a file that cannot be read is an error that names it") {
    const temporary_folder root, cache;
    put(root, "a/1.jpg", "123456");
    put(root, "a/2.jpg", "12");
    put(root, "a/3.jpg", "1");
    const data::image_folder all(root.path, kept_in(cache));
    put(root, "a/1.jpg", "1234567");
    CHECK_THROWS_MATCHES(read_text(all, 0), error,
                         MessageMatches(ContainsSubstring("a/1.jpg' has 7 bytes; it had 6")));
    fs::remove(root / "a/2.jpg");
    CHECK_THROWS_MATCHES(
        read_text(all, 1), error,
        MessageMatches(ContainsSubstring("a/2.jpg") && ContainsSubstring("no such file")));
    REQUIRE(::mkfifo((root / "a/2.jpg").c_str(), 0600) == 0);
    CHECK_THROWS_MATCHES(read_text(all, 1), error, MessageMatches(ContainsSubstring("is no file")));
    auto reader = all.reader();
    reader.most = 0;
    CHECK_THROWS_MATCHES(reader.read(all.locate(2)), error,
                         MessageMatches(ContainsSubstring("has 1 bytes, the most are 0")));
}

struct sample {
    std::int64_t length = 0, label = 0;
};
sample measure(const data::folder_file& f) {
    if (f.content.size() == 3) throw std::runtime_error("three bytes");
    return {static_cast<std::int64_t>(f.content.size()), f.label};
}

TEST_CASE("a pipeline of files names the file and the operator of a row that cannot be made") {
    const temporary_folder root, cache;
    put(root, "a/1.jpg", "1");
    put(root, "b/2.jpg", "22");
    const auto plan =
        data::image_folder(root.path, kept_in(cache)) | data::map<&measure>() | data::batch(4);
    data::loader batches(plan, {.threads = 1, .epochs = 1});
    const auto made = batches.next();
    REQUIRE(made);
    CHECK(std::ranges::equal(made->column<0>(), std::vector<std::int64_t>{1, 2}));
    CHECK(std::ranges::equal(made->column<1>(), std::vector<std::int64_t>{0, 1}));
    put(root, "b/3.jpg", "333");
    const auto more =
        data::image_folder(root.path, kept_in(cache)) | data::map<&measure>() | data::batch(4);
    data::loader failing(more, {.threads = 1, .epochs = 1});
    CHECK_THROWS_MATCHES(
        failing.next(), error,
        MessageMatches(ContainsSubstring("sample 2 (b/3.jpg), map(measure): three bytes")));
    // A checkpoint of other data is refused.
    CHECK_THROWS_MATCHES(failing.restore(batches.state()), error,
                         MessageMatches(ContainsSubstring("image_folder(")));
}

TEST_CASE("pictures in hidden folders are an error: they are no classes") {
    const temporary_folder root, cache;
    put(root, "cat/1.jpg", "1");
    put(root, "dog/.thumbnails/notes.txt", "no picture");
    put(root, "dog/2.jpg", "2");
    CHECK(data::image_folder(root.path, kept_in(cache)).size() == 2);
    for (const std::string hidden : {".ipynb_checkpoints", "cat/.ipynb_checkpoints"}) {
        put(root, hidden + "/1-checkpoint.jpg", "1");
        CHECK_THROWS_MATCHES(data::image_folder(root.path, kept_in(cache)), error,
                             MessageMatches(ContainsSubstring("'" + hidden + "'") &&
                                            ContainsSubstring("taken for classes")));
        fs::remove_all(root / hidden);
    }
}

TEST_CASE("files and folders may have any name") {
    const temporary_folder root, cache;
    const std::vector<std::string> names{"a b/%s %n.jpg", "a b/new\nline.jpg", "{0}/{}.jpg",
                                         "{0}/\xff\xfe.jpg", "{0}/quote\".jpg"};
    for (const auto& name : names) put(root, name, name);
    const data::image_folder all(root.path, kept_in(cache));
    REQUIRE(all.size() == names.size());
    for (std::uint64_t i = 0; i < all.size(); ++i) {
        const auto at = all.locate(i);
        CHECK(read_text(all, i) == at.path);
        // As it travels to helpers.
        wire::writer out;
        wire::encode(out, at);
        const auto message = std::move(out).take();
        wire::reader in(message);
        data::folder_place there;
        REQUIRE(wire::decode(in, there));
        CHECK(there.path == at.path);
    }
    fs::remove(root / "{0}/\xff\xfe.jpg");
    CHECK_THROWS_MATCHES(read_text(all, 4), error,
                         MessageMatches(ContainsSubstring("no such file")));
}

TEST_CASE("each host keeps an index of its own") {
    CHECK(data::detail::index_name("/pictures", "one") ==
          data::detail::index_name("/pictures", "one"));
    CHECK(data::detail::index_name("/pictures", "one") !=
          data::detail::index_name("/pictures", "two"));
    CHECK(data::detail::index_name("/pictures", "one") !=
          data::detail::index_name("/picture", "sone"));
}

TEST_CASE("files that cannot be opened for want of descriptors are not left out") {
    if (!test::no_free_descriptors::works) SKIP("UBSan needs descriptors itself");
    const temporary_folder root, cache;
    for (int i = 10; i < 30; ++i) put(root, "a/" + std::to_string(i) + ".jpg", "1");
    data::loader batches(data::image_folder(root.path, kept_in(cache)) | data::map<&measure>() |
                             data::batch(5),
                         {.threads = 1, .budget = 1, .bad_rows = 100, .epochs = 1});
    auto held = batches.next(); // while it is held no other is made
    REQUIRE(held);
    std::string said = "no error";
    {
        const test::no_free_descriptors tight;
        held.reset();
        try {
            (void)batches.next();
        } catch (const error& e) {
            said = e.what();
        }
    }
    CHECK_THAT(said, ContainsSubstring("too many open files") && ContainsSubstring("ulimit -n"));
    std::size_t rows = 5;
    while (auto b = batches.next()) rows += b->rows();
    CHECK(rows == 20);
}

} // namespace folder_test
