// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/job_folders.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sim/loop.hpp>
#include <skein/wire/encode.hpp>
#include <tests/support/temporary_folder.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include <catch2/catch_test_macros.hpp>

namespace job_folders_test {

using namespace skein;
using namespace skein::cluster;
using namespace std::chrono_literals;

const std::string content = "print('hello')";

package_manifest folder_of_one() {
    package_manifest out;
    package_entry file;
    file.path = "main.py";
    file.mode = 0644;
    file.size = content.size();
    file.digest = sha256_of(as_bytes(content));
    out.entries.push_back(std::move(file));
    return out;
}

/// A head with one package; it answers after a while, five bytes at a time.
struct fake_head final : cluster::detail::package_source {
    int asked = 0, pieces = 0;

    task<package_found> find_package(ask_package) override { return find(this); }
    task<blob_piece> read_blob(ask_blob which) override { return read(this, which.offset); }
    static task<package_found> find(fake_head* self) {
        ++self->asked;
        co_await sleep_for(10ms);
        package_found out;
        out.manifest = wire::encode(folder_of_one());
        co_return out;
    }
    static task<blob_piece> read(fake_head* self, std::uint64_t offset) {
        ++self->pieces;
        co_await sleep_for(10ms);
        blob_piece out;
        const auto bytes = as_bytes(content).subspan(offset).first(
            std::min<std::size_t>(5, content.size() - offset));
        out.bytes.assign(bytes.begin(), bytes.end());
        co_return out;
    }
};

struct world {
    sim::loop loop{5};
    test::temporary_folder folder;
    fake_head head;
    std::shared_ptr<job_storage> storage = std::make_shared<job_storage>([this] {
        return opened_storage{folder.path,
                              std::make_shared<package_store>(folder.path + "/files", 1 << 20)};
    });
    net::token key = net::token::generate(loop.random()).derive({net::key_kind::attempt, 7});
    cluster::detail::job_folders folders{storage, head};
    cluster::detail::job_folders without{nullptr, head};

    static task<void> enter(world* w, cluster::detail::job_place* place, std::string package) {
        auto opening = w->folders.open(place, w->key);
        co_await opening;
        CHECK(in_file(place->key->path()) == w->key.to_text());
        auto entering =
            w->folders.enter(place, place->storage + "/jobs/train-1", std::move(package));
        co_await entering;
    }
    static task<void> enter_twice(world* w, std::string package) {
        cluster::detail::job_place one, other;
        scope both;
        both.spawn(enter(w, &one, package));
        both.spawn(enter(w, &other, package));
        auto entered = both.join();
        co_await entered;
        CHECK(one.folder == other.folder);
        CHECK(one.has_own_folder);
        CHECK(!one.in_storage);
    }
    [[nodiscard]] std::string in_folder(const std::string& name) const {
        return in_file(folder.path + "/jobs/train-1/" + name);
    }
    [[nodiscard]] static std::string in_file(const std::string& path) {
        std::ifstream in(path);
        return {std::istreambuf_iterator<char>(in), {}};
    }
};

TEST_CASE("a job's folder has what the job has brought, and two processes of it make it once",
          "[cluster][jobs]") {
    world w;
    w.loop.run(world::enter_twice(&w, folder_of_one().id()));
    CHECK(w.in_folder("main.py") == content);
    CHECK(w.head.asked == 1);
    CHECK(w.head.pieces == 3);
    CHECK(std::filesystem::is_empty(w.folder.path + "/keys")); // nobody is there any more
    CHECK(!std::filesystem::exists(w.folder.path + "/token"));
    w.loop.run(world::enter_twice(&w, folder_of_one().id())); // the next attempt
    CHECK(w.head.asked == 1);
}

TEST_CASE("without a package the folder is empty", "[cluster][jobs]") {
    world w;
    w.loop.run(world::enter_twice(&w, ""));
    CHECK(std::filesystem::is_empty(w.folder.path + "/jobs/train-1"));
    CHECK(w.head.asked == 0);
}

task<void> be_refused(world* w) {
    cluster::detail::job_place place;
    auto wrong = as_result(world::enter(w, &place, std::string(64, 'a')));
    const auto other = co_await wrong;
    REQUIRE(!other);
    CHECK(other.error().code() == errc::corrupt); // not the one that it was asked for

    cluster::detail::job_place nowhere;
    auto opening = w->without.open(&nowhere, w->key);
    co_await opening;
    CHECK(nowhere.storage.empty());
    auto entering = as_result(w->without.enter(&nowhere, "/x", std::string(64, 'a')));
    const auto refused = co_await entering;
    REQUIRE(!refused);
    CHECK(refused.error().code() == errc::not_supported);
}

TEST_CASE("another package than the job's, and a node without files of jobs, are refused",
          "[cluster][jobs]") {
    world w;
    w.loop.run(be_refused(&w));
}

} // namespace job_folders_test
