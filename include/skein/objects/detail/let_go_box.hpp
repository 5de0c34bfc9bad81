// SPDX-License-Identifier: Apache-2.0
#pragma once
// What threads have let go of, for the loop of a store_client to tell the store.

#include <skein/core/loop.hpp>
#include <skein/objects/object_name.hpp>
#include <skein/objects/store_messages.hpp>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace skein::objects {
class store_client;
}

namespace skein::objects::detail {

struct let_go_box : std::enable_shared_from_this<let_go_box> {
    std::mutex mutex;      // of all
    loop* where = nullptr; ///< null: it has ended
    std::weak_ptr<store_client> to;
    std::vector<far_let_go> all;
    void (*send)(store_client&) = nullptr;

    /// Any thread.
    void put(const far_let_go& one) noexcept {
        const std::lock_guard lock(mutex);
        if (where == nullptr) return;
        all.push_back(one);
        if (all.size() > 1) return; // who put the first has told the loop
        where->post_from_any_thread([self = shared_from_this()] {
            if (const auto client = self->to.lock()) self->send(*client);
        });
    }
    /// Null: it has ended.
    [[nodiscard]] std::shared_ptr<store_client> client() const { return to.lock(); }
    [[nodiscard]] std::vector<far_let_go> take() {
        const std::lock_guard lock(mutex);
        return std::exchange(all, {});
    }
    void close() {
        const std::lock_guard lock(mutex);
        where = nullptr;
        all.clear();
    }
};

} // namespace skein::objects::detail
