// SPDX-License-Identifier: Apache-2.0
#include <skein/spmd/meeting.hpp>

#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include <sys/stat.h>

using namespace skein;
using namespace skein::spmd;
using Catch::Matchers::ContainsSubstring;

namespace {

spmd::variable_reader variables(std::map<std::string, std::string> set) {
    return [set = std::move(set)](std::string_view name) -> std::optional<std::string> {
        const auto found = set.find(std::string(name));
        if (found == set.end()) return std::nullopt;
        return found->second;
    };
}

spmd::launch_environment world_of(int size, int local_size, std::string host, int port) {
    spmd::launch_environment e;
    e.source = "torch";
    e.world_size = size;
    e.local_size = local_size;
    e.master_host = std::move(host);
    e.master_port = port;
    return e;
}

template <class F>
std::string what_of(F f) {
    try {
        f();
    } catch (const error& e) {
        return e.what();
    }
    return "no error";
}

} // namespace

TEST_CASE("ranks on one host meet on loopback") {
    const auto where = world_of(2, 2, "node-0", 6000);
    CHECK(net::to_string(meeting_point(where, variables({}))) == "tcp:127.0.0.1:6000");
    CHECK(net::to_string(listening_point(where, variables({}))) == "tcp:127.0.0.1:6000");
}

TEST_CASE("ranks on several hosts meet at rank 0's host, which listens on all interfaces") {
    const auto where = world_of(4, 2, "node-0", 6000);
    CHECK(net::to_string(meeting_point(where, variables({}))) == "tcp:node-0:6000");
    CHECK(net::to_string(listening_point(where, variables({}))) == "tcp:*:6000");
}

TEST_CASE("rank 0 may be reached by IPv6 only") {
    const auto where = world_of(4, 2, "fd00::1", 6000);
    CHECK(net::to_string(meeting_point(where, variables({}))) == "tcp:[fd00::1]:6000");
    CHECK(net::to_string(listening_point(where, variables({}))) == "tcp:*:6000");
}

TEST_CASE("a supervisor's address wins") {
    const auto set = variables({{"SKEIN_GROUP", "unix-abstract:@g"}, {"SKEIN_RANK", "0"}});
    CHECK(spmd::is_supervised(set));
    CHECK(net::to_string(meeting_point(world_of(2, 2, "", 0), set)) == "unix-abstract:@g");
}

TEST_CASE("nobody saying where rank 0 is, is an error with a way out") {
    CHECK_THAT(what_of([] { (void)meeting_point(world_of(4, 2, "", 6000), variables({})); }),
               ContainsSubstring("SKEIN_MASTER_HOST"));
    CHECK_THAT(what_of([] { (void)meeting_point(world_of(2, 2, "", 0), variables({})); }),
               ContainsSubstring("SKEIN_MASTER_PORT"));
}

TEST_CASE("the user's token is made once, private, and found again") {
    const test::temporary_folder home;
    const auto set = variables({{"HOME", home.path}});
    const auto first = spmd::group_token(set);
    CHECK_FALSE(first.empty());
    CHECK(spmd::group_token(set) == first);
    const std::filesystem::path file = home / ".config/skein/token";
    CHECK((std::filesystem::status(file).permissions() & std::filesystem::perms(0777)) ==
          std::filesystem::perms(0600));
}

TEST_CASE("ranks that make the token at the same time agree") {
    const test::temporary_folder home;
    const auto set = variables({{"XDG_CONFIG_HOME", home.path}});
    std::vector<std::string> seen(8);
    std::vector<std::thread> ranks;
    for (auto& s : seen) ranks.emplace_back([&] { s = spmd::group_token(set).to_hex(); });
    for (auto& r : ranks) r.join();
    CHECK(std::set<std::string>(seen.begin(), seen.end()).size() == 1);
}

TEST_CASE("a token file that others can read is refused") {
    const test::temporary_folder home;
    const std::filesystem::path file = home / "token";
    std::ofstream(file) << std::string(64, 'a');
    std::filesystem::permissions(file, std::filesystem::perms(0644));
    CHECK_THAT(
        what_of([&] { (void)spmd::group_token(variables({{"SKEIN_TOKEN_FILE", file.string()}})); }),
        ContainsSubstring("chmod 600"));
}

TEST_CASE("a pipe in the place of a token file is refused at once") {
    const test::temporary_folder home;
    const std::string file = home / "token";
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    CHECK_THAT(what_of([&] { (void)spmd::group_token(variables({{"SKEIN_TOKEN_FILE", file}})); }),
               ContainsSubstring("is no regular file"));
}

TEST_CASE("a damaged token file is refused without showing what is in it") {
    const test::temporary_folder home;
    std::filesystem::create_directories(home / "skein");
    const std::filesystem::path file = home / "skein/token";
    std::ofstream(file) << "secret but short";
    std::filesystem::permissions(file, std::filesystem::perms(0600));
    const auto said =
        what_of([&] { (void)spmd::group_token(variables({{"XDG_CONFIG_HOME", home.path}})); });
    CHECK_THAT(said, ContainsSubstring(file.string()) && !ContainsSubstring("secret but short"));
}

TEST_CASE("SKEIN_TOKEN is taken as it is, and checked") {
    CHECK(spmd::group_token(variables({{"SKEIN_TOKEN", std::string(64, '7')}})).to_hex() ==
          std::string(64, '7'));
    CHECK_THAT(what_of([] { (void)spmd::group_token(variables({{"SKEIN_TOKEN", "x"}})); }),
               ContainsSubstring("64 hexadecimal digits"));
}
