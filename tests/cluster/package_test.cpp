// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/package.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

using namespace skein;
using namespace skein::cluster;
using Catch::Matchers::ContainsSubstring;

namespace {

package_entry file_at(std::string path, std::string_view content = "x", std::uint32_t mode = 0644) {
    package_entry out;
    out.path = std::move(path);
    out.mode = mode;
    out.size = content.size();
    out.digest = sha256_of(as_bytes(content));
    return out;
}

package_entry link_at(std::string path, std::string to) {
    package_entry out;
    out.path = std::move(path);
    out.kind = static_cast<std::uint8_t>(entry_kind::link);
    out.link_to = std::move(to);
    return out;
}

package_entry folder_at(std::string path, std::uint32_t mode = 0755) {
    package_entry out;
    out.path = std::move(path);
    out.kind = static_cast<std::uint8_t>(entry_kind::folder);
    out.mode = mode;
    return out;
}

package_manifest of(std::vector<package_entry> entries) { return {std::move(entries)}; }

/// Why a manifest is refused; "" if it is not.
std::string why_not(std::vector<package_entry> entries, const package_bounds& bounds = {}) {
    const auto good = check_package(of(std::move(entries)), bounds);
    return good ? "" : good.error().what();
}

} // namespace

TEST_CASE("a manifest comes out of its message as it went in", "[package]") {
    const auto was = of({folder_at("empty", 0700), link_at("l", "src/a"),
                         file_at("run", "#!", 0755), file_at("src/a", "")});
    REQUIRE(check_package(was));
    const auto read = wire::decode<package_manifest>(wire::encode(was));
    REQUIRE(read);
    CHECK(*read == was);
    CHECK(read->id() == was.id());
    CHECK(was.bytes() == 2);
}

TEST_CASE("the id of a package is the same in every release", "[package]") {
    CHECK(of({}).id() == to_hex(sha256_of(as_bytes("skein package 1\n"))));
    const auto one = of({file_at("a", "hello", 0755)});
    const auto text =
        "skein package 1\n0 755 5 " + to_hex(sha256_of(as_bytes("hello"))) + " 1 0\na";
    CHECK(one.id() == to_hex(sha256_of(as_bytes(text))));
}

TEST_CASE("the id of a package tells apart all that an entry says", "[package]") {
    const auto base = of({file_at("a", "hello"), link_at("b", "a")});
    std::vector<std::string> ids = {base.id()};
    const auto other = [&](auto change) {
        auto m = base;
        change(m);
        ids.push_back(m.id());
    };
    other([](auto& m) { m.entries[0].path = "A"; });
    other([](auto& m) { m.entries[0].mode = 0755; });
    other([](auto& m) { m.entries[0] = file_at("a", "hallo"); });
    other([](auto& m) { m.entries[0].size = 6; });
    other([](auto& m) { m.entries[1].link_to = "./a"; });
    other([](auto& m) { m.entries[1] = folder_at("b", 0); });
    other([](auto& m) { m.entries.pop_back(); });
    std::sort(ids.begin(), ids.end());
    CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
}

TEST_CASE("paths are ordered name by name", "[package]") {
    CHECK(path_less("a", "a/b"));
    CHECK(path_less("a/b", "a-b")); // though '-' comes before '/'
    CHECK(path_less("a/b", "a/b/c"));
    CHECK(path_less("a/b/c", "a/c"));
    CHECK(path_less("a\x01", "a\xff"));
    CHECK_FALSE(path_less("a", "a"));
    CHECK_FALSE(path_less("b", "a/z"));
    CHECK(why_not({file_at("a/b"), file_at("a-b")}).empty());
}

TEST_CASE("a path out of its folder is refused", "[package]") {
    CHECK_THAT(why_not({file_at("")}), ContainsSubstring("is empty"));
    CHECK_THAT(why_not({file_at("/etc/passwd")}), ContainsSubstring("is absolute"));
    CHECK_THAT(why_not({file_at("..")}), ContainsSubstring("has '..'"));
    CHECK_THAT(why_not({file_at("a/../../b")}), ContainsSubstring("has '..'"));
    CHECK_THAT(why_not({file_at("a/./b")}), ContainsSubstring("has '.'"));
    CHECK_THAT(why_not({file_at("a//b")}), ContainsSubstring("empty name"));
    CHECK_THAT(why_not({file_at("a/")}), ContainsSubstring("ends with a slash"));
    CHECK_THAT(why_not({file_at(std::string("a\0b", 3))}), ContainsSubstring("zero byte"));
    CHECK(why_not({file_at("...")}).empty());
    CHECK(why_not({file_at("a/..b")}).empty());
}

TEST_CASE("a manifest that names a place twice is refused", "[package]") {
    CHECK_THAT(why_not({file_at("a"), file_at("a")}),
               ContainsSubstring("'a' in a package comes twice"));
    CHECK_THAT(why_not({file_at("b"), file_at("a")}), ContainsSubstring("not in order"));
    CHECK_THAT(why_not({file_at("a"), file_at("a/b")}), ContainsSubstring("lies below 'a'"));
    CHECK_THAT(why_not({link_at("a", "b"), file_at("a/b"), folder_at("b")}),
               ContainsSubstring("lies below"));
    CHECK_THAT(why_not({folder_at("a"), file_at("a/b")}), ContainsSubstring("lies below"));
    CHECK_THAT(why_not({link_at("a", "c"), file_at("a/b/c")}), ContainsSubstring("lies below"));
    CHECK(why_not({file_at("a"), file_at("aa/b")}).empty());
}

TEST_CASE("a link out of its folder is refused", "[package]") {
    CHECK(why_not({link_at("a/b/l", "../../c")}).empty());
    CHECK(why_not({link_at("a/l", "./b//c/")}).empty());
    CHECK(why_not({link_at("l", "nothing/there")}).empty());
    CHECK_THAT(why_not({link_at("l", "/etc")}), ContainsSubstring("absolute"));
    CHECK_THAT(why_not({link_at("l", "..")}), ContainsSubstring("outside the folder"));
    CHECK_THAT(why_not({link_at("a/b/l", "../../../c")}), ContainsSubstring("outside the folder"));
    CHECK_THAT(why_not({link_at("l", "")}), ContainsSubstring("nothing"));
    CHECK_THAT(why_not({link_at("l", std::string("a\0", 2))}), ContainsSubstring("zero byte"));
    // p/q/x is z, which has one folder above it where the text says three.
    CHECK_THAT(why_not({link_at("l", "p/q/x/../.."), link_at("p/q/x", "../../z"), folder_at("z")}),
               ContainsSubstring("'..' behind a name"));
}

TEST_CASE("an entry says nothing that its kind does not have", "[package]") {
    auto odd = file_at("a");
    odd.kind = 3;
    CHECK_THAT(why_not({odd}), ContainsSubstring("kind 3"));
    CHECK_THAT(why_not({file_at("a", "x", 04755)}), ContainsSubstring("mode 4755"));
    CHECK_THAT(why_not({folder_at("a", 01777)}), ContainsSubstring("mode 1777"));
    odd = link_at("a", "b");
    odd.mode = 0777;
    CHECK_THAT(why_not({odd}), ContainsSubstring("mode"));
    odd = folder_at("a");
    odd.size = 1;
    CHECK_THAT(why_not({odd}), ContainsSubstring("no file"));
    odd = folder_at("a");
    odd.digest = sha256_of({});
    CHECK_THAT(why_not({odd}), ContainsSubstring("no file"));
    odd = file_at("a");
    odd.link_to = "b";
    CHECK_THAT(why_not({odd}), ContainsSubstring("no link"));
    odd = file_at("a");
    odd.size = 0;
    CHECK_THAT(why_not({odd}), ContainsSubstring("digest of something else"));
    odd = file_at("b");
    odd.size = 7;
    CHECK_THAT(why_not({file_at("a"), odd}), ContainsSubstring("one digest and two sizes"));
}

TEST_CASE("a manifest is bounded", "[package]") {
    package_bounds small;
    small.entries = 2;
    small.bytes = 10;
    small.path_bytes = 20;
    small.name_bytes = 8;
    small.depth = 3;
    small.text_bytes = 30;
    CHECK(why_not({file_at("a", "12345"), file_at("b", "67890")}, small).empty());
    CHECK_THAT(why_not({file_at("a"), file_at("b"), file_at("c")}, small),
               ContainsSubstring("3 entries"));
    CHECK_THAT(why_not({file_at("a", "12345"), file_at("b", "678901")}, small),
               ContainsSubstring("more than 10 bytes"));
    CHECK_THAT(why_not({file_at("a/b/c/d")}, small), ContainsSubstring("deeper than 3"));
    CHECK_THAT(why_not({file_at("123456789")}, small), ContainsSubstring("longer than 8"));
    CHECK_THAT(why_not({file_at("1234567/1234567/12345")}, small),
               ContainsSubstring("longer than 20"));
    CHECK_THAT(why_not({link_at("a", "1234567/1234567/1234")}, small),
               ContainsSubstring("more than 19"));
    CHECK(why_not({file_at("1234567/1234567"), file_at("a234567/1234567")}, small).empty());
    CHECK_THAT(why_not({file_at("1234567/12345678"), file_at("a234567/1234567")}, small),
               ContainsSubstring("31 bytes"));
    CHECK_THAT(why_not({file_at("a/b/c"), file_at("d/e/f")}, small),
               ContainsSubstring("4 folders"));
    // The sum of sizes does not wrap.
    auto vast = file_at("a");
    vast.size = UINT64_MAX;
    CHECK_THAT(why_not({file_at("0", "12345"), vast}), ContainsSubstring("more than"));
}

TEST_CASE("what a refusal quotes of a stranger's path is on one line", "[package]") {
    const auto why = why_not({file_at("/\x1b[31m\n" + std::string(4000, 'a'))});
    CHECK(why.find('\x1b') == std::string::npos);
    CHECK(why.find('\n') == std::string::npos);
    CHECK(why.size() < 600);
}
