// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/access.hpp>
#include <skein/core/error.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/temporary_folder.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

using namespace skein;

namespace {

using skein::test::error_of;

/// The environment of a user without any settings, for one test.
class no_settings {
public:
    explicit no_settings(const std::string& config) {
        for (const char* name : names) {
            const char* was = std::getenv(name);
            before_.emplace_back(was != nullptr ? was : "");
            ::unsetenv(name);
        }
        ::setenv("XDG_CONFIG_HOME", config.c_str(), 1);
    }
    ~no_settings() {
        std::size_t i = 0;
        for (const char* name : names) {
            if (before_[i].empty())
                ::unsetenv(name);
            else
                ::setenv(name, before_[i].c_str(), 1);
            ++i;
        }
    }
    no_settings(const no_settings&) = delete;
    no_settings& operator=(const no_settings&) = delete;

private:
    static constexpr const char* names[] = {"SKEIN_TOKEN", "SKEIN_TOKEN_FILE", "SKEIN_ADDRESS",
                                            "XDG_CONFIG_HOME"};
    std::vector<std::string> before_;
};

} // namespace

TEST_CASE("a head's address is short when its port is the usual one", "[cluster][access]") {
    CHECK(cluster::parse_head_address("node-1") == net::address::tcp("node-1", 7117));
    CHECK(cluster::parse_head_address("10.0.0.1:5") == net::address::tcp("10.0.0.1", 5));
    CHECK(cluster::parse_head_address("[::1]") == net::address::tcp("::1", 7117));
    CHECK(cluster::parse_head_address("[::1]:8") == net::address::tcp("::1", 8));
    CHECK(cluster::parse_head_address("tcp:a:9") == net::address::tcp("a", 9));
    for (const char* bad : {"", ":7", "a:b", "a:70000", "tcp:a"}) {
        INFO(bad);
        const auto e = error_of([&] { (void)cluster::parse_head_address(bad); });
        CHECK(e.code() == errc::usage);
        CHECK(e.hint().find("node-1:7117") != std::string::npos);
    }
    const auto said = [](const char* text, const char* part) {
        const std::string why = error_of([&] { (void)cluster::parse_head_address(text); }).what();
        INFO(why);
        CHECK(why.find(part) != std::string::npos);
    };
    said("http://host:1", "a head has no URL");
    said(":7", "no host before the port; who listens on all addresses writes *:7");
    said("::1", "needs brackets");
    said("", "it is empty");
}

TEST_CASE("what is wrong with a token says where it came from and what to do",
          "[cluster][access]") {
    const test::temporary_folder folder;
    const no_settings none(folder.path);
    const auto said = [](const error& e, const char* part) {
        const std::string why = e.what();
        INFO(why);
        CHECK(why.find(part) != std::string::npos);
        CHECK_FALSE(e.hint().empty());
    };
    const auto find = [](const std::string& file) {
        return error_of([&] { (void)cluster::find_token(file); });
    };
    for (const char* source : {"--token-file", "SKEIN_TOKEN,", "SKEIN_TOKEN_FILE"})
        said(find(""), source);
    said(find("/nope"), "--token-file: open token file /nope");
    said(find("/nope"), "copy the token file of the head's host there");
    ::setenv("SKEIN_TOKEN_FILE", "/nope", 1);
    said(find(""), "SKEIN_TOKEN_FILE: open token file /nope");
    ::setenv("SKEIN_TOKEN_FILE", "/proc/nope", 1);
    said(error_of([] { (void)cluster::find_or_make_token(""); }), "make token file /proc/nope");
    ::setenv("SKEIN_TOKEN", "abc", 1);
    said(find(""), "SKEIN_TOKEN: a token is 64 hexadecimal digits, got 3");
}

TEST_CASE("a head makes the token file that others then find", "[cluster][access]") {
    const test::temporary_folder folder;
    const no_settings none(folder.path);
    CHECK(cluster::find_head_address("").empty());
    const auto missing = error_of([] { (void)cluster::find_token(""); });
    CHECK(missing.code() == errc::not_found);
    CHECK(missing.hint().find("SKEIN_TOKEN_FILE") != std::string::npos);

    const auto made = cluster::find_or_make_token("");
    CHECK(cluster::find_token("") == made);
    CHECK(cluster::find_or_make_token("") == made);
    const auto path = cluster::token_source("");
    CHECK(path == folder / "skein/token");
    using std::filesystem::perms;
    CHECK((std::filesystem::status(path).permissions() & (perms::group_all | perms::others_all)) ==
          perms::none);

    std::filesystem::permissions(path, perms::group_read, std::filesystem::perm_options::add);
    CHECK(error_of([] { (void)cluster::find_token(""); }).code() == errc::permission_denied);
}

TEST_CASE("a head makes the token file that the environment names, as the one on the command line",
          "[cluster][access]") {
    const test::temporary_folder folder;
    const no_settings none(folder / "config");
    const auto named = folder / "cluster/token";
    ::setenv("SKEIN_TOKEN_FILE", named.c_str(), 1);
    CHECK(error_of([] { (void)cluster::find_token(""); }).code() == errc::not_found);
    const auto made = cluster::find_or_make_token("");
    CHECK(cluster::find_token("") == made);
    CHECK((std::filesystem::status(named).permissions() & std::filesystem::perms::mask) ==
          (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
    ::setenv("SKEIN_TOKEN", std::string(64, 'a').c_str(), 1); // goes first, and no file is made
    ::setenv("SKEIN_TOKEN_FILE", (folder / "other").c_str(), 1);
    (void)cluster::find_or_make_token("");
    CHECK_FALSE(std::filesystem::exists(folder / "other"));
}

TEST_CASE("a token is made where there is none, and never written over", "[cluster][access]") {
    const test::temporary_folder folder;
    const no_settings none(folder / "config");
    const auto file = folder / "token";
    const auto made = cluster::make_token(file);
    CHECK(cluster::find_token(file).to_hex() == made);
    const auto again = error_of([&] { (void)cluster::make_token(file); });
    CHECK(again.code() == errc::already_exists);
    CHECK(std::string(again.what()).find("is there already; ") != std::string::npos);
    CHECK(cluster::find_token(file).to_hex() == made);
    CHECK(cluster::make_token("") != cluster::make_token(""));
    CHECK(net::token::from_hex(cluster::make_token("")));
    CHECK(error_of([] { (void)cluster::make_token("/proc/no/such/folder"); }).code() ==
          errc::not_found);
}

TEST_CASE("a key is made of the token, and found wherever a token is", "[cluster][access]") {
    const test::temporary_folder folder;
    const no_settings none(folder.path);
    const auto token = cluster::find_or_make_token("");
    const auto text = cluster::make_key("view", "", "");
    CHECK(text == token.derive({net::key_kind::view, 0}).to_text());
    const auto file = folder / "view";
    CHECK(cluster::make_key("view", "", file) == text);
    CHECK(cluster::find_token(file).to_text() == text);
    CHECK(error_of([&] { (void)cluster::make_key("view", "", file); }).code() ==
          errc::already_exists);
    CHECK(error_of([] { (void)cluster::make_key("head", "", ""); }).code() == errc::usage);
    // Neither a head nor another key comes of it.
    for (const auto& refused : {error_of([&] { (void)cluster::find_or_make_token(file); }),
                                error_of([&] { (void)cluster::make_key("submit", file, ""); })}) {
        CHECK(refused.code() == errc::permission_denied);
        CHECK(refused.text().find(file + " is a view key") != std::string::npos);
        CHECK(refused.text().find(text.substr(8, 8)) == std::string::npos);
    }
    ::setenv("SKEIN_TOKEN", text.c_str(), 1);
    CHECK(cluster::find_token("").to_text() == text);
    ::setenv("SKEIN_TOKEN", text.substr(0, 40).c_str(), 1);
    CHECK(error_of([] { (void)cluster::find_token(""); }).code() == errc::malformed);
}

TEST_CASE("a token file that is named is the only one looked at", "[cluster][access]") {
    const test::temporary_folder folder;
    const no_settings none(folder.path);
    const auto own = cluster::find_or_make_token("");
    const auto named = folder / "other";
    CHECK(error_of([&] { (void)cluster::find_token(named); }).code() == errc::not_found);
    const auto made = cluster::find_or_make_token(named);
    CHECK_FALSE(made == own);
    CHECK(cluster::find_token(named) == made);
    std::ofstream(named) << "no token\n";
    CHECK(error_of([&] { (void)cluster::find_token(named); }).code() == errc::malformed);
    ::setenv("SKEIN_TOKEN", std::string(64, '7').c_str(), 1);
    CHECK(cluster::token_source("") == "SKEIN_TOKEN");
    CHECK(cluster::find_token("").to_hex() == std::string(64, '7'));
}
