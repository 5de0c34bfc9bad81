// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder in which a head keeps the files of jobs, or an agent those and the jobs' own folders.
// Opened when the first job needs it: a cluster without jobs leaves nothing on a disk.
//
//     auto kept = std::make_shared<cluster::job_storage>([] {
//         return cluster::opened_storage{"/data/n1", make_store("/data/n1/packages")};
//     });
//     kept->get().packages->missing(manifest);                // on a thread that may wait

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace skein::cluster {

class package_store;

/// A folder, and the files of packages in it.
struct opened_storage {
    std::string folder;
    std::shared_ptr<package_store> packages;
};

/// Safe on several threads.
class job_storage {
public:
    explicit job_storage(std::function<opened_storage()> open) : open_(std::move(open)) {}

    /// Opens it the first time, and again after an error. Blocks.
    ///   errors  those of the function that it was made with
    [[nodiscard]] const opened_storage& get() {
        const std::lock_guard held(mutex_);
        if (opened_.packages == nullptr) opened_ = open_();
        return opened_;
    }

    /// "" : nobody has needed it yet.
    [[nodiscard]] std::string folder_if_open() {
        const std::lock_guard held(mutex_);
        return opened_.folder;
    }

private:
    std::mutex mutex_; // guards opened_
    std::function<opened_storage()> open_;
    opened_storage opened_;
};

} // namespace skein::cluster
