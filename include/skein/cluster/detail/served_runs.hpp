// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder for runs of a training, for its ranks on nodes that do not see it. Between two attempts
// it is closed, so that whoever is left of the one before writes nothing there any more.
//
//     served_runs runs(network, "/data/job/runs");    // "": there is nothing to serve
//     auto beginning = runs.begin(door, secret);
//     co_await beginning;
//     runs.tell(variables);                              // what a rank needs to find it
//     auto ending = runs.end();
//     co_await ending;

#include <skein/core/config.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/net/address.hpp>
#include <skein/net/folder_server.hpp>
#include <skein/net/network.hpp>
#include <skein/net/token.hpp>
#include <skein/spmd/run_files.hpp>

#include <map>
#include <memory>
#include <string>
#include <utility>

namespace skein::cluster::detail {

/// In the environment of a job's own process: the number of its node. The first rank is there, if
/// there is room: it writes the table.
inline constexpr const char* node_number_variable = "SKEIN_JOB_NODE_NUMBER";

/// Belongs to one loop. end() before it goes.
class served_runs {
public:
    /// `via` must outlive it.
    served_runs(net::network& via, std::string folder) : via_(via), folder_(std::move(folder)) {}

    /// Nothing happens if it has begun since the last end().
    ///   errors  those of folder_server
    [[nodiscard]] task<void> begin(net::address at, net::token secret) {
        return begin_new(this, std::move(at), secret);
    }
    [[nodiscard]] task<void> end() { return end_it(this); }

    void tell(std::map<std::string, std::string>& rank) const {
        if (server_ == nullptr) return;
        rank[spmd::run_files_variable] =
            to_string(net::address::any(server_->local().port)); // its node knows our host
        rank[spmd::run_folder_variable] = folder_;
    }

private:
    static task<void> begin_new(served_runs* self, net::address at, net::token secret) {
        if (self->folder_.empty() || self->server_ != nullptr) co_return;
        self->server_ = std::make_unique<net::folder_server>(self->via_, at, secret, self->disk_,
                                                             self->folder_);
        self->serving_ = std::make_unique<scope>();
        self->serving_->spawn(self->server_->serve());
    }
    static task<void> end_it(served_runs* self) {
        if (self->serving_ == nullptr) co_return;
        const auto serving = std::move(self->serving_);
        const auto server = std::move(self->server_);
        serving->cancel();
        auto ended = as_result(shield(serving->join()));
        (void)co_await ended;
    }

    net::network& via_;
    std::string folder_;
    posix_disk disk_{link_policy::refuse};
    std::unique_ptr<net::folder_server> server_;
    std::unique_ptr<scope> serving_;
};

} // namespace skein::cluster::detail
