// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/git_files.hpp>
#include <skein/cluster/detail/ignore_rules.hpp>
#include <skein/cluster/package_scan.hpp>
#include <skein/cluster/package_store.hpp>
#include <tests/support/log_lines.hpp>
#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

using namespace skein;
using namespace skein::cluster;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using skein::test::temporary_folder;
using paths = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

/// A folder with files, which hold their own names unless a text is given.
struct tree : temporary_folder {
    void add(const std::string& path, std::optional<std::string> text = {}) const {
        fs::create_directories(fs::path(*this / path).parent_path());
        std::ofstream(*this / path) << text.value_or(path);
    }
    void add_all(const paths& all) const {
        for (const auto& each : all) add(each);
    }
    void folder(const std::string& at) const { fs::create_directories(*this / at); }
    void link(const std::string& at, const std::string& to) const {
        fs::create_symlink(to, *this / at);
    }
};

/// Runs git there with nothing of this user's settings; skips the test where there is no git.
void git(const std::string& folder, std::vector<std::string> arguments) {
    ::setenv("GIT_CONFIG_GLOBAL", "/dev/null", 1);
    ::setenv("GIT_CONFIG_SYSTEM", "/dev/null", 1);
    std::vector<std::string> all = {
        "-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto said = cluster::detail::run_git(folder, all);
    if (!said) SKIP("git is not installed");
    INFO(said->errors);
    REQUIRE(said->code == 0);
}

/// The paths of a package; a folder has a slash behind it, a link an arrow.
paths listed(const package_manifest& of) {
    paths out;
    for (const auto& e : of.entries)
        out.push_back(e.kind == static_cast<std::uint8_t>(entry_kind::folder) ? e.path + "/"
                      : e.link_to.empty()                                     ? e.path
                                          : e.path + " -> " + e.link_to);
    return out;
}

paths scanned(const tree& at, paths always = {}) {
    scan_options how;
    how.always = std::move(always);
    return listed(scan_folder(at.path, how));
}

error refused(const std::string& folder, const scan_options& how = {}) {
    try {
        (void)scan_folder(folder, how);
    } catch (const error& e) {
        return e;
    }
    FAIL("the folder was taken");
    throw 0;
}

error refused_with(const tree& at, paths always) {
    scan_options how;
    how.always = std::move(always);
    return refused(at.path, how);
}

bool ignores(const char* rules, const std::string& path, bool is_folder = false) {
    return cluster::detail::ignore_rules(rules).leaves_out(path, is_folder);
}

} // namespace

TEST_CASE("a scan tells how many files it has found, and how many of them it has read",
          "[package_scan]") {
    const tree at;
    for (int i = 0; i < 2500; ++i) at.add(fmt::format("many/{}", i), "x");
    std::vector<std::size_t> found, read;
    scan_options how;
    how.progress = [&](const scan_progress& is) {
        if (is.all_files == 0)
            found.push_back(is.files);
        else
            read.push_back(is.files);
        if (is.all_files != 0) CHECK(is.all_bytes == 2500);
    };
    CHECK(scan_folder(at.path, how).entries.size() == 2500);
    CHECK(found == std::vector<std::size_t>{1000, 2000});
    REQUIRE(read.size() == 2500);
    for (std::size_t i = 0; i < read.size(); ++i)
        if (read[i] != i) FAIL("told " << read[i] << " files, " << i << " were read");
}

TEST_CASE("patterns of .skeinignore mean what they mean to git", "[package_scan]") {
    CHECK(ignores("*.o", "a.o"));
    CHECK(ignores("*.o", "deep/er/a.o"));
    CHECK_FALSE(ignores("*.o", "a.oo"));
    CHECK(ignores("/a", "a"));
    CHECK_FALSE(ignores("/a", "b/a"));
    CHECK(ignores("a/b", "a/b"));
    CHECK_FALSE(ignores("a/b", "c/a/b"));
    CHECK(ignores("**/a/b", "c/a/b"));
    CHECK(ignores("**/a/b", "a/b"));
    CHECK(ignores("a/**/b", "a/b"));
    CHECK(ignores("a/**/b", "a/x/y/b"));
    CHECK_FALSE(ignores("a/*/b", "a/x/y/b"));
    CHECK(ignores("a/**", "a/x"));
    CHECK_FALSE(ignores("a/**", "a", true));
    CHECK(ignores("build/", "build", true));
    CHECK_FALSE(ignores("build/", "build"));
    CHECK(ignores("build/", "build/x/y"));
    CHECK(ignores("build/", "sub/build/x"));
    CHECK(ignores("*\n!keep", "drop"));
    CHECK_FALSE(ignores("*\n!keep", "keep"));
    CHECK(ignores("a\n!a/keep", "a/keep")); // its folder is out
    CHECK_FALSE(ignores("a/*\n!a/keep", "a/keep"));
    CHECK_FALSE(ignores("# comment\n\n", "# comment"));
    CHECK(ignores("\\#a\n", "#a"));
    CHECK(ignores("\\!a", "!a"));
    CHECK(ignores("a  \r\n", "a"));
    CHECK(ignores("a\\ ", "a "));
    CHECK(ignores("[a-c]?[!x]", "bzz"));
    CHECK_FALSE(ignores("[a-c]?[!x]", "bzx"));
    CHECK(ignores("v[[:digit:]]", "v7"));
    CHECK_FALSE(ignores("v[[:digit:]]", "vv"));
    CHECK(ignores("[]]", "]"));
    CHECK_FALSE(ignores("[a", "[a"));
    CHECK(ignores("a\\*", "a*"));
    CHECK_FALSE(ignores("a\\*", "ab"));
    CHECK_FALSE(ignores("/", "a"));
    CHECK(ignores("\xef\xbb\xbf"
                  "a",
                  "a"));
    // Stars that would take for ever if each were tried everywhere.
    CHECK_FALSE(ignores("a*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(200, 'a')));
    CHECK_FALSE(ignores("**/a/**/a/**/a/**/a/**/a/**/b",
                        fmt::format("{}", fmt::join(paths(200, "a"), "/"))));
}

TEST_CASE("a folder that is no work tree goes along as it is", "[package_scan]") {
    const tree at;
    at.add_all({".gitignore", ".hidden", "a", "b/c", "b/d"});
    at.add(".gitignore", "a\n"); // of nobody's repository
    at.folder("empty/er");
    at.link("l", "b/c");
    at.link("b/up", "../a");
    const auto got = scan_folder(at.path + "/");
    CHECK(listed(got) == paths{".gitignore", ".hidden", "a", "b/c", "b/d", "b/up -> ../a",
                               "empty/er/", "l -> b/c"});
    CHECK(got.entries[4].digest == sha256_of(as_bytes("b/d")));
    CHECK(got.entries[4].size == 3);
    CHECK(check_package(got));
}

TEST_CASE("permission bits are kept and no others", "[package_scan]") {
    const tree at;
    at.add_all({"plain", "run", "setuid"});
    REQUIRE(::chmod((at / "plain").c_str(), 0640) == 0);
    REQUIRE(::chmod((at / "run").c_str(), 0755) == 0);
    REQUIRE(::chmod((at / "setuid").c_str(), 06755) == 0);
    at.folder("sticky");
    REQUIRE(::chmod((at / "sticky").c_str(), 01770) == 0);
    const auto got = scan_folder(at.path);
    std::vector<std::uint32_t> modes;
    for (const auto& e : got.entries) modes.push_back(e.mode);
    CHECK(modes == std::vector<std::uint32_t>{0640, 0755, 0755, 0770});
}

TEST_CASE("git says what goes along of a work tree", "[package_scan]") {
    const tree at;
    git(at.path, {"init", "-q"});
    at.add(".gitignore", "build/\n*.o\n/out\n");
    at.add_all({"tracked.o", "gone", "src/a.c", "src/a.o", "src/.gitignore", "src/only_here",
                "build/train", "out/x", "src/out", "untracked", "only/ignored.o"});
    at.add("src/.gitignore", "only_here\n");
    at.add("odd\nname \"'", "odd");
    git(at.path, {"add", "-f", "tracked.o", "gone", "src/a.c"});
    fs::remove(at / "gone");
    at.add("src/a.c", "changed since");
    at.folder("empty/deep/er");
    at.folder("build/empty");
    at.folder(":(top)src");
    const auto got = scan_folder(at.path);
    CHECK(listed(got) == paths{".gitignore", ":(top)src/", "empty/deep/er/", "odd\nname \"'",
                               "only/", "src/.gitignore", "src/a.c", "src/out", "tracked.o",
                               "untracked"});
    CHECK(got.entries[6].digest == sha256_of(as_bytes("changed since")));
}

TEST_CASE("a folder within a work tree has the rules above it", "[package_scan]") {
    const tree at;
    git(at.path, {"init", "-q"});
    at.add(".gitignore", "*.o\nbuild\n");
    at.add_all({"app/a.c", "app/a.o", "else"});
    const auto got = listed(scan_folder(at / "app"));
    CHECK(got == paths{"a.c"});
}

TEST_CASE("a folder that git ignores as a whole goes along when it is asked for",
          "[package_scan]") {
    const tree at;
    git(at.path, {"init", "-q"});
    at.add(".gitignore", "build\n*.o\n");
    at.add_all({"build/train", "build/a.o", "build/sub/x", "build/keep"});
    git(at.path, {"add", "-f", "build/keep"});
    CHECK(listed(scan_folder(at / "build")) == paths{"a.o", "keep", "sub/x", "train"});
    CHECK(listed(scan_folder(at / "build/sub")) == paths{"x"});
}

TEST_CASE("repositories within the folder have their own rules", "[package_scan]") {
    const tree at, library;
    git(library.path, {"init", "-q"});
    library.add(".gitignore", "*.tmp\n");
    library.add("lib.c");
    git(library.path, {"add", "."});
    git(library.path, {"commit", "-q", "-m", "one"});

    git(at.path, {"init", "-q"});
    at.add("a");
    git(at.path, {"submodule", "--quiet", "add", library.path, "module"});
    git(at.path, {"clone", "-q", library.path, "clone"});
    at.add_all({"module/x.tmp", "module/y.c", "clone/x.tmp", "clone/z.c"});
    CHECK(scanned(at) == paths{".gitmodules", "a", "clone/.gitignore", "clone/lib.c", "clone/z.c",
                               "module/.gitignore", "module/lib.c", "module/y.c"});

    const tree around; // no repository itself
    around.add("b");
    git(around.path, {"clone", "-q", library.path, "clone"});
    around.add("clone/x.tmp");
    CHECK(scanned(around) == paths{"b", "clone/.gitignore", "clone/lib.c"});
}

TEST_CASE("a folder that only looks like a repository is none", "[package_scan]") {
    const tree at;
    at.add_all({".git/HEAD", "a", "sub/b"});
    at.folder("sub/.git");
    CHECK(scanned(at) == paths{"a", "sub/b"});
}

TEST_CASE("what git refuses is told in its words", "[package_scan]") {
    const tree at;
    git(at.path, {"init", "-q"});
    at.add("a");
    at.add(".git/config", "[core\n");
    const auto why = refused(at.path);
    CHECK(why.code() == errc::io);
    CHECK_THAT(why.what(), ContainsSubstring("cannot list " + at.path + " by git") &&
                               ContainsSubstring("bad config"));
}

TEST_CASE("without git everything goes along, and a line says so", "[package_scan]") {
    const tree at;
    git(at.path, {"init", "-q"});
    at.add(".gitignore", "b\n");
    at.add_all({"a", "b"});
    const std::string path = std::getenv("PATH");
    ::setenv("PATH", at.path.c_str(), 1);
    const skein::test::log_lines lines("cluster");
    const auto got = scanned(at);
    ::setenv("PATH", path.c_str(), 1);
    CHECK(got == paths{".gitignore", "a", "b"});
    CHECK(lines.count("git is not installed") == 1);
}

TEST_CASE(".skeinignore takes out tracked files, too", "[package_scan]") { // ray-project/ray 53648
    const tree at;
    at.add_all({"a", "docs/x", "docs/keep", "data/large", "data/small"});
    at.add(".skeinignore", "docs/*\n!docs/keep\nlarge\n.skeinignore\nempty\n");
    at.folder("empty");
    const paths want = {"a", "data/small", "docs/keep"};
    CHECK(scanned(at) == want);
    git(at.path, {"init", "-q"});
    git(at.path, {"add", "."});
    CHECK(scanned(at) == want);
}

TEST_CASE("a single star leaves out everything", "[package_scan]") { // ray-project/ray 19236
    const tree at;
    at.add_all({"output.dat", "sub/b"});
    at.add(".skeinignore", "*\n");
    CHECK(scanned(at).empty());
    CHECK(scanned(at, {"sub/b"}) == paths{"sub/b"});
}

TEST_CASE("what the command names goes along though ignored", "[package_scan]") {
    // ray-project/ray 18279: files that git ignores, and that the job needs
    const tree at;
    git(at.path, {"init", "-q"});
    at.add(".gitignore", "build/\n*.pkl\n");
    at.add(".skeinignore", "notes\n");
    at.add_all({"a", "build/train", "build/lib/so", "build/obj/x", "model.pkl", "notes"});
    CHECK(scanned(at, {"./build/train", "model.pkl", "build//lib/", "a", "notes"}) ==
          paths{".gitignore", ".skeinignore", "a", "build/lib/so", "build/train", "model.pkl",
                "notes"});
    CHECK(scanned(at, {"build/../build/train"}) ==
          paths{".gitignore", ".skeinignore", "a", "build/train"});
    CHECK(scanned(at, {"."}).size() == 8);
}

TEST_CASE("a link that the command names takes along what it points at", "[package_scan]") {
    const tree at;
    at.add(".skeinignore", "*\n");
    at.add_all({"build/v2/train", "build/v2/other", "alone"});
    at.link("build/now", "v2");
    at.link("train", "./build/now/train");
    at.link("loop", "loop");
    at.link("abs", at / "alone");
    at.link("out", "../x");
    CHECK(scanned(at, {"train"}) ==
          paths{"build/now -> v2", "build/v2/train", "train -> ./build/now/train"});
    CHECK_THAT(refused_with(at, {"loop"}).what(), ContainsSubstring("too many links"));
    CHECK(refused_with(at, {"abs"}).code() == errc::not_supported);
    CHECK_THAT(refused_with(at, {"out"}).what(), ContainsSubstring("is not in " + at.path));
}

TEST_CASE("the command names nothing outside", "[package_scan]") {
    const tree at;
    at.add_all({"a", ".git/config"});
    CHECK_THAT(refused_with(at, {"b"}).what(),
               ContainsSubstring("b is not in " + at.path + "; make it first"));
    CHECK(refused_with(at, {"b"}).code() == errc::not_found);
    CHECK(refused_with(at, {"../a"}).code() == errc::invalid_argument);
    CHECK(refused_with(at, {"/etc/passwd"}).code() == errc::invalid_argument);
    CHECK(refused_with(at, {".git/config"}).code() == errc::invalid_argument);
    CHECK(refused_with(at, {"a/b"}).code() == errc::not_found);
}

TEST_CASE("an empty folder is a package", "[package_scan]") { // ray-project/ray 15255
    const tree at;
    const auto got = scan_folder(at.path);
    CHECK(got.entries.empty());
    CHECK(check_package(got));
    const temporary_folder home;
    package_store store(home / "store", 1000);
    store.keep(got);
    store.lay_out(got, home / "job");
    CHECK(fs::is_empty(home / "job"));
}

TEST_CASE("a folder that is not there is named", "[package_scan]") { // ray-project/ray 15254
    const tree at;
    at.add("a");
    const auto why = refused(at / "none");
    CHECK(why.code() == errc::not_found);
    CHECK_THAT(why.what(), ContainsSubstring(at / "none") && ContainsSubstring("name a folder"));
    CHECK(refused(at / "a").code() == errc::invalid_argument);
}

TEST_CASE("a change of any file that goes along is another package", "[package_scan]") {
    // ray-project/ray 53635: a pattern made all packages one, and changes were not sent
    const tree at;
    at.add(".skeinignore", ".*\n");
    at.add("script", "one");
    const auto one = scan_folder(at.path).id();
    CHECK(scan_folder(at.path).id() == one);
    at.add(".hidden", "does not go along");
    CHECK(scan_folder(at.path).id() == one);
    at.add("script", "two");
    CHECK(scan_folder(at.path).id() != one);
    at.add("script", "one");
    CHECK(scan_folder(at.path).id() == one); // not the times of files
    REQUIRE(::chmod((at / "script").c_str(), 0755) == 0);
    CHECK(scan_folder(at.path).id() != one);
}

TEST_CASE("a folder that is too large names the ten largest", "[package_scan]") {
    const tree at;
    for (int i = 0; i < 12; ++i)
        at.add(fmt::format("f{:02}", i), std::string(static_cast<std::size_t>(2000 + i), 'x'));
    scan_options how;
    how.bounds.bytes = 20000;
    const auto why = refused(at.path, how);
    CHECK(why.code() == errc::too_large);
    CHECK_THAT(why.what(), ContainsSubstring("has 23.5 KiB, 19.5 KiB are the most") &&
                               ContainsSubstring("the largest are f11 (2.0 KiB), f10") &&
                               ContainsSubstring("f02 (2.0 KiB);") && !ContainsSubstring("f01") &&
                               ContainsSubstring(".skeinignore"));
    how.bounds.bytes = 24066;
    CHECK(scan_folder(at.path, how).bytes() == 24066);
}

TEST_CASE("a folder of too many files names where they are", "[package_scan]") {
    // ray-project/ray 45602: many small files, and nothing said which
    const tree at;
    for (int i = 0; i < 30; ++i) at.add(fmt::format("cache/{}/x", i), "1234567890");
    at.add_all({"a", "b/c"});
    for (int i = 0; i < 30; ++i) at.add(fmt::format(".git/objects/{}", i));
    scan_options how;
    how.bounds.entries = 31;
    CHECK_THAT(
        refused(at.path, how).what(),
        ContainsSubstring("has 32 files and folders, 31 are the most") &&
            ContainsSubstring("the largest are cache/ (30 entries, 300 bytes), a (1 bytes)"));
    how.bounds.entries = 32;
    CHECK(scan_folder(at.path, how).entries.size() == 32);
}

TEST_CASE("links out of the folder are refused by name", "[package_scan]") {
    // ray-project/ray 47284: links are followed there, and all they point at goes along
    for (const auto* to : {"/etc/passwd", "../../outside", "c/../../../outside", "c/../../a"}) {
        const tree at;
        at.add_all({"a", "b/c"});
        at.link("b/l", to);
        const auto why = refused(at.path);
        CHECK(why.code() == errc::not_supported);
        CHECK_THAT(why.what(), ContainsSubstring("link 'b/l'") && ContainsSubstring(to) &&
                                   ContainsSubstring(".skeinignore"));
        at.add(".skeinignore", "b/l\n");
        CHECK(scanned(at) == paths{".skeinignore", "a", "b/c"});
    }
}

TEST_CASE("pipes, sockets and devices are refused by name", "[package_scan]") {
    const tree at;
    at.add("a");
    REQUIRE(::mkfifo((at / "fifo").c_str(), 0600) == 0);
    CHECK_THAT(refused(at.path).what(),
               ContainsSubstring("not supported: " + (at / "fifo") + " is a pipe"));
    fs::remove(at / "fifo");
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    (at / "socket").copy(where.sun_path, sizeof where.sun_path - 1);
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0);
    ::close(fd);
    CHECK_THAT(refused(at.path).what(), ContainsSubstring((at / "socket") + " is a socket"));
    fs::remove(at / "socket");
    if (::mknod((at / "null").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) { // needs root
        CHECK_THAT(refused(at.path).what(), ContainsSubstring((at / "null") + " is a device"));
        at.add(".skeinignore", "null\n");
    }
    CHECK(scan_folder(at.path).entries.front().path ==
          (fs::exists(at / "null") ? ".skeinignore" : "a"));
}

TEST_CASE("a file or folder that cannot be read is named", "[package_scan]") {
    const tree at;
    at.add_all({"a", "b/secret", "c/d"});
    REQUIRE(::chmod((at / "b/secret").c_str(), 0) == 0);
    REQUIRE(::chmod(at.path.c_str(), 0755) == 0);
    const bool is_root = ::geteuid() == 0;
    if (is_root) ::setfsuid(65534); // of this thread alone: root may read everything
    const auto why = refused(at.path);
    if (is_root) ::setfsuid(0);
    CHECK(why.code() == errc::permission_denied);
    CHECK_THAT(why.what(), ContainsSubstring(at / "b/secret") && ContainsSubstring("skeinignore"));
    REQUIRE(::chmod((at / "b/secret").c_str(), 0644) == 0);
    REQUIRE(::chmod((at / "c").c_str(), 0) == 0);
    if (is_root) ::setfsuid(65534);
    const auto folder = refused(at.path);
    if (is_root) ::setfsuid(0);
    REQUIRE(::chmod((at / "c").c_str(), 0755) == 0);
    CHECK(folder.code() == errc::permission_denied);
    CHECK_THAT(folder.what(), ContainsSubstring(at / "c"));
}

TEST_CASE("a file that changes while it is read is an error", "[package_scan]") {
    const auto after_first_piece = [](const tree& at, const std::function<void()>& change) {
        at.add("large", std::string(std::size_t{3} << 20, 'x'));
        at.add("next", "n");
        scan_options how;
        bool is_done = false;
        how.progress = [&](const scan_progress&) {
            if (!std::exchange(is_done, true)) change();
        };
        return refused(at.path, how);
    };
    const tree at;
    const auto file = at / "large";
    const auto expect_changed = [&](const error& why, const std::string& which) {
        CHECK(why.code() == errc::aborted);
        CHECK_THAT(why.what(), ContainsSubstring(which + " has changed"));
    };
    expect_changed(after_first_piece(at, [&] { std::ofstream(file, std::ios::app) << "y"; }), file);
    expect_changed(after_first_piece(at, [&] { fs::resize_file(file, 1 << 20); }), file);
    expect_changed(after_first_piece(at, [&] { std::ofstream(file) << "y"; }), file);
    expect_changed(after_first_piece(at, [&] { fs::remove(at / "next"); }), at / "next");
    expect_changed(after_first_piece(at,
                                     [&] {
                                         fs::remove(at / "next");
                                         fs::create_symlink("large", at / "next");
                                     }),
                   at / "next");
}

TEST_CASE("a scan that is asked to stop does", "[package_scan]") {
    const tree at;
    at.add("large", std::string(std::size_t{3} << 20, 'x'));
    std::stop_source stop;
    scan_options how;
    how.stop = stop.get_token();
    std::vector<std::uint64_t> told;
    how.progress = [&](const scan_progress& is) {
        told.push_back(is.bytes);
        CHECK(is.all_bytes == 3u << 20);
        CHECK(is.path == "large");
        stop.request_stop();
    };
    CHECK(refused(at.path, how).code() == errc::cancelled);
    CHECK(told == std::vector<std::uint64_t>{1u << 20});
}

TEST_CASE("files are read in pieces as they were scanned", "[package_scan]") {
    const tree at;
    at.add("b/a", "0123456789");
    const auto e = scan_folder(at.path).entries.at(0);
    CHECK(as_text(read_package_file(at.path, e, 0, 4)) == "0123");
    CHECK(as_text(read_package_file(at.path, e, 8, 4)) == "89");
    CHECK(read_package_file(at.path, e, 10, 4).empty());
    const auto code_of = [&](package_entry of) {
        try {
            (void)read_package_file(at.path, of, 0, 4);
        } catch (const error& why) {
            return why.code();
        }
        return errc::unknown;
    };
    auto outside = e;
    outside.path = "../b/a";
    CHECK(code_of(outside) == errc::malformed);
    at.add("b/a", "01234567890");
    CHECK(code_of(e) == errc::aborted);
    fs::remove(at / "b/a");
    CHECK(code_of(e) == errc::aborted);
    at.add("c/a", "0123456789");
    fs::remove(at / "b");
    at.link("b", "c"); // the way there is a link now
    CHECK(code_of(e) == errc::aborted);
}

TEST_CASE("a folder arrives as it was", "[package_scan]") {
    const tree at;
    at.add_all({"bin/run", "data/a", "data/b"});
    at.add("data/twice", "data/a"); // the same bytes go once
    REQUIRE(::chmod((at / "bin/run").c_str(), 0755) == 0);
    at.folder("logs");
    at.link("run", "bin/run");
    const auto what = scan_folder(at.path);
    const temporary_folder home;
    package_store store(home / "store", 1 << 20);
    const auto pin = store.pin(what);
    auto missing = store.missing(what);
    CHECK(missing.size() == 3);
    for (const auto& e : what.entries) {
        if (e.size == 0 || store.has(e.digest)) continue;
        auto blob = store.begin(e.digest, e.size);
        for (std::uint64_t got = 0; got < e.size; got = blob.bytes())
            blob.append(read_package_file(at.path, e, got, 2));
        blob.commit();
    }
    CHECK(store.missing(what).empty());
    store.lay_out(what, home / "job");
    CHECK(scan_folder(home / "job") == what);
}
