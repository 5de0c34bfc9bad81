// SPDX-License-Identifier: Apache-2.0
#include <skein/core/awaitable.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/folder_server.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_network.hpp>
#include <skein/sim/disk.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/run_files.hpp>

#include <catch2/catch_test_macros.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/core.h>

using namespace skein;

namespace run_files_test {

/// A folder that another host serves, on a disk of its own.
class served {
public:
    served() {
        io_.run([this] { return begin(this); });
    }
    ~served() {
        io_.run([this] { return end(this); });
    }
    served(const served&) = delete;
    served& operator=(const served&) = delete;

    sim::disk disk;
    net::address at;
    static constexpr const char* secret =
        "7777777777777777777777777777777777777777777777777777777777777777";

private:
    static task<void> begin(served* self) {
        self->network_ = std::make_unique<net::real_network>(self->io_.loop());
        self->server_ = std::make_unique<net::folder_server>(
            *self->network_, net::address::tcp("127.0.0.1", 0),
            net::token::from_hex(secret).value(), self->disk, "/there/runs");
        self->at = self->server_->local();
        self->serving_ = std::make_unique<scope>();
        self->serving_->spawn(self->server_->serve());
        co_return;
    }
    static task<void> end(served* self) {
        self->serving_->cancel();
        auto ended = as_result(self->serving_->join());
        (void)co_await ended;
        self->serving_.reset();
        self->server_.reset();
        self->network_.reset();
    }

    net::loop_thread io_{"served"};
    std::unique_ptr<net::real_network> network_;
    std::unique_ptr<net::folder_server> server_;
    std::unique_ptr<scope> serving_;
};

spmd::variable_reader reads(std::map<std::string, std::string> all) {
    return [all = std::move(all)](std::string_view name) -> std::optional<std::string> {
        const auto found = all.find(std::string(name));
        if (found == all.end()) return std::nullopt;
        return found->second;
    };
}

TEST_CASE("a rank of another host has the run's files at the path that they have there", "[spmd]") {
    served there;
    posix_disk here(link_policy::refuse);
    for (const auto* const host : {"127.0.0.1", "*"}) { // the second: that of its group
        const auto told =
            reads({{spmd::run_files_variable, fmt::format("tcp:{}:{}", host, there.at.port)},
                   {spmd::run_folder_variable, "/there/runs"},
                   {spmd::group_variable, "tcp:127.0.0.1:1"},
                   {spmd::token_variable, served::secret}});
        const spmd::run_files files("/here/runs", told);
        CHECK(files.are_far());
        CHECK(mounted_folder::name_of("/here/runs/gpt") == "/there/runs/gpt");
        REQUIRE(here.make_dirs("/there/runs/gpt"));
        REQUIRE(here.replace("/there/runs/gpt/a", as_bytes(std::string_view(host))));
        CHECK(as_text(there.disk.read_whole("/there/runs/gpt/a").value()) == host);
    }
    CHECK(mounted_folder::of("/there/runs") == nullptr);
}

TEST_CASE("a process that is told nothing of a folder looks at its own files", "[spmd]") {
    const spmd::run_files files("/here/runs", reads({{spmd::group_variable, "tcp:127.0.0.1:1"}}));
    CHECK_FALSE(files.are_far());
    CHECK(mounted_folder::of("/here/runs") == nullptr);
}

} // namespace run_files_test
