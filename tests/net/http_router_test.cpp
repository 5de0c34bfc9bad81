// SPDX-License-Identifier: Apache-2.0
#include <skein/net/http_router.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

using namespace skein;
using net::http_right;

namespace {

task<net::http_answer> nothing(net::http_call) { co_return wire::http_response{}; }

net::http_router some() {
    net::http_router r;
    r.add("GET", "/", http_right::open, &nothing);
    r.add("GET", "/api/jobs/", http_right::view, &nothing);
    r.add("POST", "/api/jobs/", http_right::change, &nothing);
    r.add("GET", "/api/jobs/{id}", http_right::view, &nothing);
    r.add("GET", "/api/jobs/newest", http_right::open, &nothing);
    r.add("DELETE", "/api/jobs/{id}", http_right::change, &nothing);
    r.add("GET", "/api/logs/{node}/{file}", http_right::view, &nothing);
    return r;
}

std::string pattern_of(std::string_view method, std::string_view path) {
    auto r = some();
    const auto m = r.find(method, path);
    return m.found == nullptr ? "none" : m.found->pattern;
}

bool is_refused(std::string method, std::string pattern, http_right right) {
    auto r = some();
    try {
        r.add(std::move(method), std::move(pattern), right, &nothing);
    } catch (const error& e) {
        CHECK(e.code() == errc::invalid_argument);
        return true;
    }
    return false;
}

} // namespace

TEST_CASE("a path finds its route, the more exact one first, with the parts in braces") {
    CHECK(pattern_of("GET", "/") == "/");
    CHECK(pattern_of("GET", "/api/jobs") == "/api/jobs/");
    CHECK(pattern_of("GET", "/api/jobs/") == "/api/jobs/");
    CHECK(pattern_of("GET", "/api/jobs/newest") == "/api/jobs/newest");
    CHECK(pattern_of("GET", "/api/jobs/7/") == "/api/jobs/{id}");
    CHECK(pattern_of("HEAD", "/api/jobs/7") == "/api/jobs/{id}");
    CHECK(pattern_of("GET", "/api/jobs/7/x") == "none");
    CHECK(pattern_of("GET", "/api") == "none");
    CHECK(pattern_of("GET", "*") == "none");
    auto r = some();
    const auto m = r.find("GET", "/api/logs/node-1/out log");
    CHECK(m.parts == wire::http_pairs{{"node", "node-1"}, {"file", "out log"}});
}

TEST_CASE("a path says which methods it takes") {
    auto r = some();
    CHECK(r.find("PUT", "/api/jobs/7").allowed == "OPTIONS, GET, HEAD, DELETE");
    CHECK(r.find("PUT", "/api/jobs/7").found == nullptr);
    CHECK(r.find("PUT", "/api/jobs").allowed == "OPTIONS, GET, HEAD, POST");
    CHECK(r.find("GET", "/nothing").allowed.empty());
    CHECK(r.routes().size() == 7);
    CHECK(r.routes()[2].method == "POST");
    CHECK(to_string(r.routes()[2].right) == "change");
}

TEST_CASE("two routes for one request, and a GET that changes something, are refused") {
    CHECK(is_refused("GET", "/api/jobs", http_right::view));
    CHECK(is_refused("GET", "/api/jobs/{name}", http_right::view));
    CHECK(is_refused("GET", "/api/stop", http_right::change));
    CHECK(is_refused("GET", "api", http_right::view));
    CHECK_FALSE(is_refused("PUT", "/api/jobs/{name}", http_right::change));
    CHECK_FALSE(is_refused("GET", "/api/jobs/{id}/logs", http_right::view));
}
