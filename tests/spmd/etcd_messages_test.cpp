// SPDX-License-Identifier: Apache-2.0
// What is said to etcd's JSON gateway and what it answers, in the words of etcd 3.4.23.
#include <skein/spmd/detail/etcd_messages.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <string>

namespace etcd_messages_test {

using namespace skein;
using namespace skein::spmd;
using namespace skein::spmd::detail;

namespace {

const std::string header =
    R"("header":{"cluster_id":"13725950003953283643","member_id":"1","revision":"9007199254740993","raft_term":"2"})";

spmd::view large() {
    spmd::view v;
    v.generation = UINT64_MAX;
    v.author = UINT64_MAX - 1;
    v.failures = 3;
    v.group = "tcp:[fe80::1%eth0]:6380";
    v.why = "\"worker\" 2\n\\ was killed \xc3\xa9";
    v.is_over = true;
    for (std::uint64_t i = 1; i < 5; ++i)
        v.members.push_back({i << 60, "node-" + std::to_string(i), i, static_cast<int>(4000 + i)});
    return v;
}

} // namespace

TEST_CASE("base64 is that of RFC 4648") {
    CHECK(to_base64("").empty());
    CHECK(to_base64("f") == "Zg==");
    CHECK(to_base64("fn") == "Zm4=");
    CHECK(to_base64("foo") == "Zm9v");
    CHECK(to_base64("foobar") == "Zm9vYmFy");
    CHECK(to_base64("\xff\xfe\xfd") == "//79");
    for (const char* bad :
         {"Z", "Zg=", "Zg=a", "====", "Z===", "Zh==", "Zm9=", "Zm9v\n", "Zm-_", "Zg==Zg=="})
        CHECK_FALSE(from_base64(bad));
    std::string bytes;
    for (int i = 0; i < 300; ++i) {
        CHECK(from_base64(to_base64(bytes)).value() == bytes);
        bytes += static_cast<char>(i * 37);
    }
}

TEST_CASE("requests are what etcd reads: base64, and whole numbers as text") {
    CHECK(range_request("/skein/j/view") == R"({"key":"L3NrZWluL2ovdmlldw=="})");
    CHECK(watch_request("k", 9007199254740993) ==
          R"({"create_request":{"key":"aw==","start_revision":"9007199254740993"}})");
    CHECK(swap_request("k", 7, "v") ==
          R"({"compare":[{"key":"aw==","mod_revision":"7","result":"EQUAL","target":"MOD"}],)"
          R"("failure":[{"request_range":{"key":"aw=="}}],)"
          R"("success":[{"request_put":{"key":"aw==","value":"dg=="}}]})");
    CHECK(swap_request("k", 0, "v", 5).find(R"("lease":"5")") != std::string::npos);
    CHECK(grant_request(INT64_MAX, 5) == R"({"ID":"9223372036854775807","TTL":"5"})");
    CHECK(lease_request(5) == R"({"ID":"5"})");
    CHECK(authenticate_request("a\"", "\xff") == R"({"name":"a\"","password":")"
                                                 "\xef\xbf\xbd"
                                                 R"("})");
}

TEST_CASE("answers to reads: a key, and none") {
    const auto none = read_range("{" + header + "}");
    REQUIRE(none);
    CHECK(none->kv.mod_revision == 0);
    CHECK(none->header.cluster == 13725950003953283643U);
    CHECK(none->header.revision == 9007199254740993); // a double would lose its last bit
    const auto one = read_range(
        "{" + header +
        R"(,"kvs":[{"key":"aw==","create_revision":"2","mod_revision":"3","version":"1","value":"dg==","lease":"77"}],"count":"1"})");
    REQUIRE(one);
    CHECK(one->kv.value == "v");
    CHECK(one->kv.mod_revision == 3);
    CHECK(one->kv.lease == 77);
    const auto empty = read_range("{" + header + R"(,"kvs":[{"key":"aw==","mod_revision":3}]})");
    REQUIRE(empty); // an empty value is left out; some gateways write numbers as such
    CHECK(empty->kv.value.empty());
    CHECK(empty->kv.mod_revision == 3);
}

TEST_CASE("answers to swaps: made, and not") {
    const auto made =
        read_swap("{" + header + R"(,"succeeded":true,"responses":[{"response_put":{}}]})");
    REQUIRE(made);
    CHECK(made->made);
    const auto not_made = read_swap(
        "{" + header +
        R"(,"responses":[{"response_range":{"header":{"revision":"2"},"kvs":[{"key":"aw==","mod_revision":"2","value":"dg=="}]}}]})");
    REQUIRE(not_made);
    CHECK_FALSE(not_made->made);
    CHECK(not_made->now.value == "v");
    const auto deleted =
        read_swap("{" + header + R"(,"responses":[{"response_range":{"header":{}}}]})");
    REQUIRE(deleted);
    CHECK(deleted->now.mod_revision == 0);
    CHECK_FALSE(read_swap("{" + header + "}")); // it does not say what is there
}

TEST_CASE("answers about leases") {
    const auto granted = read_grant("{" + header + R"(,"ID":"77","TTL":"5"})");
    REQUIRE(granted);
    CHECK(granted->id == 77);
    CHECK(granted->ttl == 5);
    CHECK_FALSE(read_grant("{" + header + R"(,"ID":"77"})"));
    const auto kept =
        read_keep_alive(R"({"result":{)" + header + R"(,"ID":"77","TTL":"5"}})" + "\n");
    REQUIRE(kept);
    CHECK(kept->ttl == 5);
    const auto gone = read_keep_alive(R"({"result":{)" + header + R"(,"ID":"78"}})" + "\n");
    REQUIRE(gone);
    CHECK(gone->ttl == 0);
    CHECK_FALSE(read_keep_alive(R"({"result":{)" + header + R"(,"ID":"78","TTL":"9000000001"}})"));
}

TEST_CASE("lines of a watch") {
    const auto created = read_watch_line(R"({"result":{)" + header + R"(,"created":true}})");
    REQUIRE(created);
    CHECK(created->created);
    CHECK_FALSE(created->ended);
    const auto events = read_watch_line(
        R"({"result":{)" + header +
        R"(,"events":[{"kv":{"key":"aw==","mod_revision":"2","value":"dg=="}},{"type":"DELETE","kv":{"key":"aw==","mod_revision":"3"}}]}})");
    REQUIRE(events);
    REQUIRE(events->now.size() == 2);
    CHECK(events->now[0].value == "v");
    CHECK(events->now[1].mod_revision == 0);
    const auto compacted =
        read_watch_line(R"({"result":{)" + header + R"(,"canceled":true,"compact_revision":"2"}})");
    REQUIRE(compacted);
    CHECK(compacted->ended);
    CHECK(compacted->why == "compacted");
    const auto no_leader = read_watch_line(
        R"({"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service Unavailable"}})");
    REQUIRE(no_leader);
    CHECK(no_leader->ended);
    CHECK(no_leader->why == "etcdserver: no leader");
    CHECK_FALSE(read_watch_line(R"({"result":{)" + header));
    CHECK_FALSE(read_watch_line(R"({"result":{"created":true}})"));
    CHECK_FALSE(read_watch_line(R"({"result":{)" + header + R"(,"events":[{"type":"PUT"}]}})"));
}

TEST_CASE("failures: etcd's own, a stream's, and what is none of etcd's") {
    const auto own = read_failure(
        R"({"error":"etcdserver: requested lease not found","message":"etcdserver: requested lease not found","code":5})");
    CHECK(own.code == 5);
    CHECK(own.text == "etcdserver: requested lease not found");
    // etcd 3.6, whose gateway names an error once
    const auto newer =
        read_failure(R"({"code":16,"message":"etcdserver: invalid auth token","details":[]})");
    CHECK(newer.code == 16);
    CHECK(newer.text == "etcdserver: invalid auth token");
    const auto stream =
        read_failure(R"({"error":{"grpc_code":8,"http_code":429,"message":"full"}})");
    CHECK(stream.code == 8);
    CHECK(stream.text == "full");
    CHECK(read_failure("404 page not found\n").code == -1);
    CHECK(read_failure("").code == -1);
    CHECK(read_failure("[1]").code == -1);
    CHECK(read_failure(R"({"message":"x","code":"5"})").code == -1);
    CHECK(read_version(R"({"etcdserver":"3.4.23","etcdcluster":"3.4.0"})") == "3.4.23");
    CHECK(read_version("<html>").empty());
}

TEST_CASE("half an answer is none, wherever it is cut") {
    const std::string whole =
        "{" + header + R"(,"kvs":[{"key":"aw==","mod_revision":"3","value":"dg=="}]})";
    REQUIRE(read_range(whole));
    for (std::size_t n = 0; n < whole.size(); ++n) CHECK_FALSE(read_range(whole.substr(0, n)));
}

TEST_CASE("numbers out of their range, and other things in their place, are refused") {
    for (const char* bad : {R"("9223372036854775808")", R"("")", R"("1x")", R"(" 1")", "1.5",
                            "true", "{}", "9223372036854775808"})
        CHECK_FALSE(read_range("{" + header + R"(,"kvs":[{"mod_revision":)" + bad + "}]}"));
    CHECK_FALSE(read_range(R"({"header":{"cluster_id":"-1"}})"));
    CHECK_FALSE(read_range("{" + header + R"(,"kvs":{}})"));
    CHECK_FALSE(read_range("{" + header + R"(,"kvs":[1]})"));
    CHECK_FALSE(read_range(R"({"kvs":[]})"));
    CHECK_FALSE(read_token("{" + header + R"(,"token":"a\r\nX: y"})")); // it goes into a header
    CHECK(read_token("{" + header + R"(,"token":"abc.12"})")->token == "abc.12");
}

TEST_CASE("a view comes back as it was stored") {
    const stored_view stored{large(), "nonce", {"b", "a"}};
    const auto text = write_view(stored);
    const auto again = read_view(text);
    REQUIRE(again);
    CHECK(*again == stored);
    CHECK(text.find(R"("generation":18446744073709551615)") != std::string::npos); // etcdctl get
    CHECK(is_by(*again, "nonce"));
    CHECK(is_by(*again, "a"));
    CHECK_FALSE(is_by(*again, "c"));
}

TEST_CASE("values that no register wrote are refused, and say what is wrong") {
    CHECK(read_view("127.0.0.1:29500").error().code() == errc::malformed);
    CHECK(read_view("[]").error().code() == errc::malformed);
    CHECK(read_view("{}").error().text().find("'format'") != std::string::npos);
    auto newer = write_view({large(), "n", {}});
    newer.replace(newer.find(R"("format":1)"), 10, R"("format":2)");
    CHECK(read_view(newer).error().code() == errc::mismatch);
    auto zero = large();
    zero.generation = 0;
    CHECK_FALSE(read_view(write_view({zero, "n", {}})));
    CHECK_FALSE(read_view(write_view({large(), "n", std::vector<std::string>(17, "x")})));
    const coordinator_place place{7, "tcp:a:1"};
    CHECK(read_place(write_place(place)).value() == place);
    CHECK_FALSE(read_place(write_place({})));
}

} // namespace etcd_messages_test
