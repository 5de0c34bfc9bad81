// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/package_store.hpp>
#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

using namespace skein;
using namespace skein::cluster;
using Catch::Matchers::ContainsSubstring;
using skein::test::temporary_folder;
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t plenty = std::uint64_t{1} << 30;

package_entry file_at(std::string path, std::string_view content, std::uint32_t mode = 0644) {
    package_entry out;
    out.path = std::move(path);
    out.mode = mode;
    out.size = content.size();
    out.digest = sha256_of(as_bytes(content));
    return out;
}

package_entry other(entry_kind kind, std::string path, std::uint32_t mode, std::string to = {}) {
    package_entry out;
    out.path = std::move(path);
    out.kind = static_cast<std::uint8_t>(kind);
    out.mode = mode;
    out.link_to = std::move(to);
    return out;
}

sha256_digest put(package_store& in, std::string_view content) {
    const auto digest = sha256_of(as_bytes(content));
    in.put(digest, as_bytes(content));
    return digest;
}

/// A text of so many bytes that no other number gives.
std::string text_of(int number, std::size_t bytes) {
    auto out = std::to_string(number) + ":";
    out.resize(bytes, static_cast<char>('a' + number % 26));
    return out;
}

sha256_digest digest_of(int number, std::size_t bytes) {
    return sha256_of(as_bytes(text_of(number, bytes)));
}

/// What an action throws; fails the test if it throws nothing.
error thrown_by(const std::function<void()>& action) {
    try {
        action();
    } catch (const error& e) {
        return e;
    }
    FAIL("nothing was thrown");
    throw 0;
}

std::vector<std::string> names_of(const std::string& folder) {
    std::vector<std::string> out;
    for (const auto& each : fs::recursive_directory_iterator(folder))
        out.push_back(each.path().lexically_relative(folder).string());
    std::sort(out.begin(), out.end());
    return out;
}

unsigned mode_of(const std::string& path) {
    struct stat is{};
    REQUIRE(::lstat(path.c_str(), &is) == 0);
    return is.st_mode & 07777;
}

std::string blob_path(const temporary_folder& in, const sha256_digest& digest) {
    const auto hex = to_hex(digest);
    return in / ("store/blobs/" + hex.substr(0, 2) + "/" + hex);
}

} // namespace

TEST_CASE("a blob that was put is read in pieces", "[package_store]") {
    const temporary_folder home;
    package_store store(home / "store", plenty);
    const auto content = text_of(1, (std::size_t{5} << 19) + 7); // 2.5 MiB and a bit
    const auto digest = sha256_of(as_bytes(content));
    CHECK_FALSE(store.has(digest));
    auto blob = store.begin(digest, content.size());
    for (std::size_t at = 0; at < content.size(); at += 1000000)
        blob.append(as_bytes(std::string_view(content).substr(at, 1000000)));
    CHECK(blob.bytes() == content.size());
    CHECK_FALSE(store.has(digest)); // before it is whole it is not there
    blob.commit();
    CHECK(store.has(digest));
    std::string got;
    for (;;) {
        const auto piece = store.read(digest, got.size(), plenty);
        CHECK(piece.size() <= most_blob_piece);
        if (piece.empty()) break;
        got += as_text(piece);
    }
    CHECK(got == content);
    CHECK(as_text(store.read(digest, 3, 5)) == content.substr(3, 5));
}

TEST_CASE("a blob that is not what its name says leaves nothing", "[package_store]") {
    const temporary_folder home;
    package_store store(home / "store", plenty);
    const auto digest = sha256_of(as_bytes("abc"));
    CHECK(thrown_by([&] { store.put(digest, as_bytes("abx")); }).code() == errc::mismatch);
    {
        auto shorter = store.begin(digest, 3);
        shorter.append(as_bytes("ab"));
        CHECK_THAT(thrown_by([&] { shorter.commit(); }).what(), ContainsSubstring("2 of 3 bytes"));
        CHECK(thrown_by([&] { shorter.append(as_bytes("c")); }).code() == errc::aborted);
    }
    {
        auto longer = store.begin(digest, 3);
        longer.append(as_bytes("abc"));
        CHECK(thrown_by([&] { longer.append(as_bytes("d")); }).code() == errc::too_large);
        CHECK(thrown_by([&] { longer.commit(); }).code() == errc::aborted);
    }
    { auto left = store.begin(digest, 3); }
    CHECK_FALSE(store.has(digest));
    CHECK(names_of(home / "store/new").empty());
    CHECK(names_of(home / "store/blobs").empty());
    CHECK(store.usage().bytes == 0);
    CHECK(thrown_by([&] { (void)store.read(digest, 0, 1); }).code() == errc::not_found);
}

TEST_CASE("two that write one blob do not disturb each other", "[package_store]") {
    const temporary_folder home;
    package_store store(home / "store", plenty);
    const auto digest = sha256_of(as_bytes("abc"));
    auto one = store.begin(digest, 3), two = store.begin(digest, 3);
    one.append(as_bytes("a"));
    two.append(as_bytes("ab"));
    one.append(as_bytes("bc"));
    one.commit();
    two.append(as_bytes("c"));
    two.commit();
    CHECK(as_text(store.read(digest, 0, 9)) == "abc");
    CHECK(store.usage().bytes == 3);
    CHECK(store.usage().blobs == 1);
}

TEST_CASE("a store is its owner's alone", "[package_store]") {
    const temporary_folder home;
    const auto before = ::umask(0);
    package_store store(home / "deep/er/store", plenty);
    const auto digest = put(store, "abc");
    store.lay_out({{file_at("a/b", "abc", 0644)}}, home / "job");
    ::umask(before);
    CHECK(mode_of(home / "deep/er/store") == 0700);
    CHECK(mode_of(home / "deep/er/store/blobs") == 0700);
    const auto hex = to_hex(digest);
    CHECK(mode_of(home / "deep/er/store/blobs/" + hex.substr(0, 2)) == 0700);
    CHECK(mode_of(home / "deep/er/store/blobs/" + hex.substr(0, 2) + "/" + hex) == 0600);
    CHECK(mode_of(home / "job") == 0700);
    CHECK(mode_of(home / "job/a/b") == 0644);
}

TEST_CASE("a store belongs to one process", "[package_store]") {
    const temporary_folder home;
    auto store = std::make_unique<package_store>(home / "store", plenty);
    const auto why = thrown_by([&] { package_store again(home / "store", plenty); });
    CHECK(why.code() == errc::already_exists);
    CHECK_THAT(why.what(), ContainsSubstring("another process keeps packages in " + home.path));
    store.reset();
    package_store again(home / "store", plenty);
    CHECK(again.usage().blobs == 0);
}

TEST_CASE("a store needs a folder", "[package_store]") {
    const temporary_folder home;
    std::ofstream(home / "plain") << "x";
    CHECK(thrown_by([&] { package_store s(home / "plain", plenty); }).code() ==
          errc::invalid_argument);
    CHECK(thrown_by([&] { package_store s(home / "store", 0); }).code() == errc::invalid_argument);
    if (::geteuid() == 0) {
        fs::create_directory(home / "theirs");
        REQUIRE(::chown((home / "theirs").c_str(), 65534, 65534) == 0);
        CHECK(thrown_by([&] { package_store s(home / "theirs", plenty); }).code() ==
              errc::permission_denied);
    }
}

TEST_CASE("a package is laid out as its manifest says", "[package_store]") {
    const temporary_folder home;
    package_store store(home / "store", plenty);
    const package_manifest what{
        {file_at("bin/run", "#!/bin/sh\n", 0755), file_at("data/a", "same", 0600),
         file_at("data/deep/er/b", "same", 0444), file_at("data/zero", ""),
         other(entry_kind::folder, "logs", 0500), other(entry_kind::link, "run", 0, "bin/run")}};
    put(store, "#!/bin/sh\n");
    put(store, "same");
    store.lay_out(what, home / "job");
    CHECK(names_of(home / "job") ==
          std::vector<std::string>{"bin", "bin/run", "data", "data/a", "data/deep", "data/deep/er",
                                   "data/deep/er/b", "data/zero", "logs", "run"});
    CHECK(home.text("job/run") == "#!/bin/sh\n");
    CHECK(home.text("job/data/deep/er/b") == "same");
    CHECK(fs::file_size(home / "job/data/zero") == 0);
    CHECK(fs::read_symlink(home / "job/run") == "bin/run");
    CHECK(mode_of(home / "job/bin/run") == 0755);
    CHECK(mode_of(home / "job/data/a") == 0600);
    CHECK(mode_of(home / "job/data/deep/er/b") == 0444);
    CHECK(mode_of(home / "job/logs") == 0700); // its owner may always write there
    CHECK(names_of(home.path).size() == names_of(home / "store").size() + 12); // nothing beside it
}

TEST_CASE("what a job writes into its files stays its own", "[package_store]") {
    const temporary_folder home;
    package_store store(home / "store", plenty);
    const auto digest = put(store, "once");
    const package_manifest what{{file_at("a", "once")}};
    store.lay_out(what, home / "one");
    std::ofstream(home / "one/a") << "twice";
    store.lay_out(what, home / "two");
    CHECK(home.text("two/a") == "once");
    CHECK(as_text(store.read(digest, 0, 9)) == "once");
}

TEST_CASE("a folder is made whole or not at all", "[package_store]") {
    const temporary_folder home;
    package_store store(home / "store", plenty);
    put(store, "abc");
    const auto fails = [&](const package_manifest& what, const std::string& target) {
        const auto before = names_of(home.path);
        const auto why = thrown_by([&] { store.lay_out(what, target); });
        CHECK(names_of(home.path) == before);
        return why;
    };
    const package_manifest good{{file_at("a", "abc")}};
    CHECK(fails({{file_at("a", "abc"), file_at("b", "not here")}}, home / "job").code() ==
          errc::not_found);
    CHECK(fails(good, home / "no/job").code() == errc::not_found);
    CHECK(fails(good, home / "..").code() == errc::invalid_argument);
    CHECK(fails({{file_at("../a", "abc")}}, home / "job").code() == errc::malformed);
    fs::create_directory(home / "there");
    CHECK(fails(good, home / "there").code() == errc::already_exists);
    fs::create_symlink("nowhere", home / "dangles");
    CHECK(fails(good, home / "dangles").code() == errc::already_exists);
    auto lies = good; // another size than the blob has
    lies.entries[0].size = 4;
    CHECK(fails(lies, home / "job").code() == errc::corrupt);
    std::stop_source stop;
    stop.request_stop();
    CHECK(thrown_by([&] { store.lay_out(good, home / "job", stop.get_token()); }).code() ==
          errc::cancelled);
    CHECK_FALSE(fs::exists(home / "job"));
    store.lay_out(good, home / "job/");
    CHECK(home.text("job/a") == "abc");
}

TEST_CASE("a full disk is an error and leaves no half file", "[package_store]") {
    temporary_folder home;
    if (!home.mount_tmpfs("size=1m")) SKIP("a small file system needs root");
    package_store store(home / "store", plenty);
    const auto large = text_of(1, std::size_t{2} << 20);
    const auto digest = sha256_of(as_bytes(large));
    const auto why = thrown_by([&] { store.put(digest, as_bytes(large)); });
    CHECK(why.code() == errc::disk_full);
    CHECK_THAT(why.what(), ContainsSubstring("free some space"));
    CHECK(names_of(home / "store/new").empty());
    CHECK(store.usage().bytes == 0);
    const auto fits = text_of(2, std::size_t{600} << 10);
    put(store, fits);
    const auto before = names_of(home.path);
    CHECK(thrown_by([&] { store.lay_out({{file_at("a", fits)}}, home / "job"); }).code() ==
          errc::disk_full);
    CHECK(names_of(home.path) == before);
}

TEST_CASE("what has been unused for longest goes first", "[package_store]") {
    const temporary_folder home;
    package_store store(home / "store", 1000);
    for (int i = 0; i < 4; ++i) put(store, text_of(i, 250));
    (void)store.read(digest_of(0, 250), 0, 1);
    put(store, text_of(4, 300)); // takes the room of 1 and 2
    CHECK(store.has(digest_of(0, 250)));
    CHECK_FALSE(store.has(digest_of(1, 250)));
    CHECK_FALSE(store.has(digest_of(2, 250)));
    CHECK(store.has(digest_of(3, 250)));
    CHECK_FALSE(fs::exists(blob_path(home, digest_of(1, 250))));
    CHECK(store.usage().bytes == 800);
}

TEST_CASE("nothing of a pinned package goes", "[package_store]") {
    const temporary_folder home;
    package_store store(home / "store", 1200);
    const package_manifest what{{file_at("a", text_of(0, 300)), file_at("b", text_of(1, 300))}};
    put(store, text_of(0, 300));
    const auto id = store.keep(what);
    CHECK(id == what.id());
    {
        auto pin = store.pin(id);
        const auto again = store.pin(id);
        CHECK(pin.id() == id);
        pin = package_pin();         // one of two
        put(store, text_of(1, 300)); // pinned before it came
        put(store, text_of(2, 300));
        put(store, text_of(3, 300)); // takes the room of 2
        CHECK_FALSE(store.has(digest_of(2, 300)));
        CHECK(store.missing(what).empty());
        const auto why = thrown_by([&] { put(store, text_of(4, 900)); });
        CHECK(why.code() == errc::exhausted);
        CHECK_THAT(why.what(), ContainsSubstring("belong to jobs that live"));
        CHECK(store.has(digest_of(3, 300))); // it would not have been enough
        CHECK(store.find(id));
        CHECK(store.usage().pinned > 600);
    }
    CHECK(store.usage().pinned == 0);
    put(store, text_of(4, 900));
    CHECK(store.missing(what).size() == 2);
    CHECK(store.usage().bytes <= 1200);
}

TEST_CASE("room that is being written to is not given twice", "[package_store]") {
    const temporary_folder home;
    package_store store(home / "store", 1000);
    {
        auto one = store.begin(digest_of(1, 600), 600);
        CHECK(store.usage().bytes == 600);
        CHECK(thrown_by([&] { (void)store.begin(digest_of(2, 600), 600); }).code() ==
              errc::exhausted);
    }
    auto two = store.begin(digest_of(2, 600), 600);
    two.append(as_bytes(text_of(2, 600)));
    two.commit();
    CHECK(store.usage().bytes == 600);
    CHECK(thrown_by([&] { (void)store.begin(digest_of(3, 600), UINT64_MAX); }).code() ==
          errc::exhausted);
    CHECK(store.has(digest_of(2, 600)));
}

TEST_CASE("a pin may outlive its store", "[package_store]") {
    const temporary_folder home;
    std::optional<package_pin> pin;
    {
        package_store store(home / "store", plenty);
        pin = store.pin(store.keep({{file_at("a", "abc")}}));
    }
    CHECK(thrown_by([&] { package_store again(home / "store", plenty); }).code() ==
          errc::already_exists); // it still holds the folder
    pin.reset();
    package_store again(home / "store", plenty);
    CHECK(again.usage().packages == 1);
}

TEST_CASE("a package that is not kept cannot be pinned", "[package_store]") {
    const temporary_folder home;
    package_store store(home / "store", plenty);
    CHECK(thrown_by([&] { (void)store.pin(package_manifest{}.id()); }).code() == errc::not_found);
    CHECK(thrown_by([&] { (void)store.pin("../../etc/passwd"); }).code() == errc::not_found);
    CHECK(thrown_by([&] { store.keep({{file_at("/a", "abc")}}); }).code() == errc::malformed);
    CHECK_FALSE(store.find("no id"));
}

TEST_CASE("a new process takes over what is whole", "[package_store]") {
    const temporary_folder home;
    const package_manifest what{{file_at("a", text_of(0, 300)), file_at("b", text_of(1, 300)),
                                 file_at("c", text_of(2, 300))}};
    std::string id;
    {
        package_store store(home / "store", plenty);
        for (int i = 0; i < 3; ++i) put(store, text_of(i, 300));
        id = store.keep(what);
    }
    // A power loss may leave a file of zeros, or a shorter one; a kill one that is not done.
    std::ofstream(blob_path(home, digest_of(1, 300))) << std::string(300, '\0');
    fs::resize_file(blob_path(home, digest_of(2, 300)), 299);
    std::ofstream(home / "store/new/7") << "half";
    std::ofstream(home / "store/blobs/README") << "of somebody else";
    package_store store(home / "store", plenty);
    CHECK(store.usage().blobs == 3);
    CHECK(store.find(id) == what);
    const auto missing = store.missing(what);
    CHECK(missing.size() == 2);
    CHECK(std::find(missing.begin(), missing.end(), digest_of(0, 300)) == missing.end());
    CHECK_FALSE(fs::exists(home / "store/new/7"));
    CHECK(fs::exists(home / "store/blobs/README"));
    for (int i = 1; i < 3; ++i) put(store, text_of(i, 300));
    store.lay_out(what, home / "job");
    CHECK(home.text("job/b") == text_of(1, 300));
}

TEST_CASE("a damaged manifest is not there", "[package_store]") {
    const temporary_folder home;
    const package_manifest what{{file_at("a", "abc")}};
    std::string id;
    {
        package_store store(home / "store", plenty);
        id = store.keep(what);
    }
    std::ofstream(home / ("store/manifests/" + id), std::ios::app) << "x";
    package_store store(home / "store", plenty);
    CHECK_FALSE(store.find(id));
    CHECK(store.usage().packages == 0);
    store.keep(what);
    CHECK(store.find(id) == what);
}

TEST_CASE("who starts again removes in the order of use before", "[package_store]") {
    const temporary_folder home;
    {
        package_store store(home / "store", plenty);
        for (int i = 0; i < 3; ++i) put(store, text_of(i, 300));
    }
    // What the clock says of files that were written within one of its ticks is told here.
    for (int i = 0; i < 3; ++i)
        fs::last_write_time(blob_path(home, digest_of(i, 300)),
                            fs::file_time_type::clock::now() - std::chrono::hours(i));
    package_store store(home / "store", 900);
    put(store, text_of(7, 300));
    CHECK(store.has(digest_of(0, 300)));
    CHECK(store.has(digest_of(1, 300)));
    CHECK_FALSE(store.has(digest_of(2, 300)));
}
