// SPDX-License-Identifier: Apache-2.0
#include "cluster/results_support.hpp"

#include <skein/cluster/digest_cache.hpp>
#include <tests/support/temporary_folder.hpp>

#include <string>

#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>

namespace digest_cache_test {

using namespace results_support;

struct stat status_of(const std::string& path) {
    struct stat out{};
    REQUIRE(::stat(path.c_str(), &out) == 0);
    return out;
}

TEST_CASE("a file that is as it was is known by its digest, over processes", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto path = folder.path + "/cache/skein/digests", file = folder.path + "/file";
    write_file(file, "text");
    const auto is = status_of(file);
    const auto digest = sha256_of(as_bytes(std::string("text")));
    const auto later = digest_cache::now() + 10'000'000'000;
    {
        digest_cache known(path);
        CHECK_FALSE(known.find(is));
        known.learn(is, digest, digest_cache::now()); // too young: it may change in this tick
        CHECK_FALSE(known.find(is));
        known.learn(is, digest, later);
        CHECK(known.find(is) == digest);
        CHECK(known.save());
    }
    digest_cache known(path);
    CHECK(known.find(is) == digest);
    auto other = is;
    ++other.st_size;
    CHECK_FALSE(known.find(other));
    other = is;
    ++other.st_ctim.tv_nsec;
    CHECK_FALSE(known.find(other));
    other = is;
    ++other.st_ino;
    CHECK_FALSE(known.find(other));
    other = is;
    ++other.st_mtim.tv_nsec;
    CHECK_FALSE(known.find(other));
}

TEST_CASE("what does not fit is no list of digests, and is replaced", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto path = folder.path + "/digests", file = folder.path + "/file";
    write_file(file, "text");
    const auto is = status_of(file);
    const auto later = digest_cache::now() + 10'000'000'000;
    {
        digest_cache known(path);
        known.learn(is, sha256_of(as_bytes(std::string("text"))), later);
        REQUIRE(known.save());
    }
    const auto whole = text_of(path);
    for (std::size_t n = 0; n <= whole.size(); ++n) {
        auto bad = whole.substr(0, n);
        if (n == whole.size()) bad[n / 2] = static_cast<char>(bad[n / 2] ^ 1);
        write_file(path, bad);
        CHECK(digest_cache(path).files() == 0);
    }
    write_file(path, whole);
    CHECK(digest_cache(path).files() == 1);
    ::chmod(path.c_str(), 0666); // others may have written it
    CHECK(digest_cache(path).files() == 0);
    digest_cache known(path);
    known.learn(is, sha256_of({}), later);
    REQUIRE(known.save());
    CHECK((status_of(path).st_mode & 0777) == 0600);
    CHECK(digest_cache(path).files() == 1);
    CHECK(digest_cache("").save());
}

} // namespace digest_cache_test
