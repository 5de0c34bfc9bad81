// SPDX-License-Identifier: Apache-2.0
#include "net/requests_support.hpp"

#include <skein/cluster/detail/package_message.hpp>
#include <skein/cluster/detail/package_service.hpp>
#include <skein/core/sha256.hpp>
#include <tests/support/temporary_folder.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <catch2/catch_test_macros.hpp>

namespace package_service_test {

using namespace net_test;
using namespace skein::cluster;
namespace parts = skein::cluster::detail;
using parts::package_service;

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

offer_package offer() {
    offer_package out;
    out.manifest = wire::encode(folder_of_one());
    return out;
}

put_blob piece(std::size_t from, std::size_t to) {
    put_blob out;
    out.digest = to_hex(sha256_of(as_bytes(content)));
    out.size = content.size();
    out.offset = from;
    const auto bytes = as_bytes(content).subspan(from, to - from);
    out.bytes.assign(bytes.begin(), bytes.end());
    out.is_last = to == content.size();
    return out;
}

/// A head that has a service of packages alone, and a client of it.
struct world {
    sim::loop loop{5};
    sim::network network{loop, sim::faults()};
    test::temporary_folder folder;
    std::shared_ptr<job_storage> storage = std::make_shared<job_storage>([this] {
        return opened_storage{folder.path,
                              std::make_shared<package_store>(folder.path + "/files", 1 << 20)};
    });
    std::shared_ptr<parts::package_uploads> uploads = std::make_shared<parts::package_uploads>();

    using body = std::function<task<void>(const package_service&, net::requests&)>;

    static task<void> talk(world* w, bool has_storage, body work) {
        const package_service packages(has_storage ? w->storage : nullptr);
        auto service = std::make_shared<net::request_service>();
        packages.serve(*service, w->uploads);
        auto talking = with_client(&w->network, std::move(service),
                                   [&](net::requests& client) { return work(packages, client); });
        co_await talking;
    }
    void run(bool has_storage, body work) { loop.run(talk(this, has_storage, std::move(work))); }
};

/// What a call is answered with, if that is an error.
template <class Reply, class M>
task<errc> refusal_of(net::requests* from, M m) {
    auto asking = error_of(drop_value(from->call<Reply>(std::move(m))));
    const auto fault = co_await asking;
    co_return fault ? fault->code() : errc{};
}

task<errc> refusal_to_hold(const package_service* packages, std::string package) {
    auto holding = error_of(drop_value(packages->hold(std::move(package))));
    const auto fault = co_await holding;
    co_return fault ? fault->code() : errc{};
}

TEST_CASE("a folder is offered, sent piece by piece, held for a job, and handed to its node",
          "[cluster][jobs]") {
    world w;
    w.run(true, [&w](const package_service& packages, net::requests& at) -> task<void> {
        auto unknown = refusal_to_hold(&packages, folder_of_one().id());
        const auto unknown_code = co_await unknown;
        CHECK(unknown_code == errc::not_found);
        auto offering = at.call<package_wanted>(offer());
        const auto wanted = co_await offering;
        CHECK(wanted.id == folder_of_one().id());
        REQUIRE(wanted.missing.size() == 1);
        CHECK(w.uploads->pins.size() == 1);
        auto too_early = refusal_to_hold(&packages, wanted.id);
        const auto too_early_code = co_await too_early;
        CHECK(too_early_code == errc::not_found); // one file is not here

        auto one = at.call<blob_taken>(piece(0, 5));
        (void)co_await one;
        CHECK(w.uploads->writers.size() == 1);
        auto wrong = refusal_of<blob_taken>(&at, piece(9, content.size()));
        const auto wrong_code = co_await wrong;
        CHECK(wrong_code == errc::malformed); // not the next one
        auto rest = at.call<blob_taken>(piece(5, content.size()));
        (void)co_await rest;
        CHECK(w.uploads->writers.empty());

        auto holding = packages.hold(wanted.id);
        const auto held = co_await holding;
        CHECK(held.id() == wanted.id);
        CHECK(packages.hold_if_here(wanted.id).id() == wanted.id);
        CHECK(packages.hold_if_here("another").id().empty());
        auto asking = at.call<package_found>(ask_package{wanted.id});
        const auto found = co_await asking;
        CHECK(parts::read_manifest(found.manifest).id() == wanted.id);
        auto reading = at.call<blob_piece>(ask_blob{wanted.missing.front(), 6});
        const auto read = co_await reading;
        CHECK(as_text(read.bytes) == content.substr(6));
    });
}

TEST_CASE("a head without a folder refuses jobs that bring files, and takes those that bring none",
          "[cluster][jobs]") {
    world w;
    w.run(false, [](const package_service& packages, net::requests& at) -> task<void> {
        auto nothing = packages.hold("");
        const auto none = co_await nothing;
        CHECK(none.id().empty());
        CHECK(packages.hold_if_here("some").id().empty());
        auto holding = refusal_to_hold(&packages, "some");
        const auto holding_code = co_await holding;
        CHECK(holding_code == errc::not_supported);
        auto offering = refusal_of<package_wanted>(&at, offer());
        const auto offering_code = co_await offering;
        CHECK(offering_code == errc::not_supported);
        auto asking = refusal_of<package_found>(&at, ask_package{"some"});
        const auto asking_code = co_await asking;
        CHECK(asking_code == errc::not_supported);
        auto of_another_release = offer();
        ++of_another_release.version;
        auto older = refusal_of<package_wanted>(&at, of_another_release);
        const auto older_code = co_await older;
        CHECK(older_code == errc::mismatch);
    });
}

TEST_CASE("one link offers so many folders at most, and none when it has gone", "[cluster][jobs]") {
    world w;
    w.run(true, [&w](const package_service&, net::requests& at) -> task<void> {
        for (std::size_t i = 0; i < parts::most_offers; ++i) {
            auto offering = at.call<package_wanted>(offer());
            (void)co_await offering;
        }
        auto one_more = refusal_of<package_wanted>(&at, offer());
        const auto one_more_code = co_await one_more;
        CHECK(one_more_code == errc::exhausted);
        w.uploads.reset();
        auto gone = refusal_of<package_wanted>(&at, offer());
        const auto gone_code = co_await gone;
        CHECK(gone_code == errc::closed);
    });
}

} // namespace package_service_test
