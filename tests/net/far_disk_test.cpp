// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/core/posix_disk.hpp>
#include <skein/net/far_disk.hpp>
#include <skein/net/folder_server.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_network.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

using namespace net_test;

namespace far_disk_test {

/// A folder that is served on a thread of its own.
class served {
public:
    served() {
        folder = (std::filesystem::temp_directory_path() /
                  fmt::format("skein-far-{}-{}", ::getpid(), ++number))
                     .string();
        std::filesystem::create_directories(folder);
        there_.run([this] { return begin(this); });
    }
    ~served() {
        end();
        std::filesystem::remove_all(folder);
    }
    served(const served&) = delete;
    served& operator=(const served&) = delete;
    void end() {
        there_.run([this] { return end_it(this); });
    }

    std::string folder;
    net::address at;

private:
    static task<void> begin(served* self) {
        self->network_ = std::make_unique<net::real_network>(self->there_.loop());
        self->server_ =
            std::make_unique<net::folder_server>(*self->network_, net::address::tcp("127.0.0.1", 0),
                                                 options().secret, self->disk_, self->folder);
        self->at = self->server_->local();
        self->serving_ = std::make_unique<scope>();
        self->serving_->spawn(self->server_->serve());
        co_return;
    }
    static task<void> end_it(served* self) {
        if (self->serving_ == nullptr) co_return;
        self->serving_->cancel();
        auto ended = as_result(self->serving_->join());
        (void)co_await ended;
        self->serving_.reset();
        self->server_.reset();
        self->network_.reset();
    }

    inline static int number = 0;
    posix_disk disk_{link_policy::refuse};
    net::loop_thread there_{"served"};
    std::unique_ptr<net::real_network> network_;
    std::unique_ptr<net::folder_server> server_;
    std::unique_ptr<scope> serving_;
};

TEST_CASE("a folder of another host is a disk like another one", "[net]") {
    served there;
    net::far_disk far(there.at, options().secret, there.folder);
    byte_buffer large((std::size_t{3} << 20) + 17);
    for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::byte>(i * 7);
    const auto path = there.folder + "/gpt/step-1/shard";
    CHECK(far.make_dirs(there.folder + "/gpt/step-1"));
    CHECK(far.replace(path, large));
    CHECK(far.read_whole(path).value() == large);
    CHECK(posix_disk().read_whole(path).value() == large);
    CHECK(far.status(path).value().bytes == large.size());
    CHECK(far.list(there.folder).value().front().name == "gpt");
    CHECK(far.free_space(there.folder).value() > 0);

    auto file = far.open(path, open_mode::append).value();
    CHECK(file->size().value() == large.size());
    CHECK(file->truncate(5));
    CHECK(file->append(as_bytes(std::string_view("abc"))));
    byte_buffer eight(20);
    CHECK(file->read_at(0, eight).value() == 8);
    CHECK(file->try_lock() == file_lock::held);
    auto other = posix_disk().open(path, open_mode::append).value();
    CHECK(other->try_lock() == file_lock::busy);
    CHECK(file->is_at(path));
    CHECK(far.rename(path, path + ".old"));
    CHECK_FALSE(file->is_at(path));
    CHECK(file->close());
    CHECK(other->try_lock() == file_lock::held);

    CHECK(far.open(path, open_mode::read).error().code() == errc::not_found);
    CHECK(far.open("/etc/passwd", open_mode::read).error().code() == errc::not_supported);
    CHECK(far.open(there.folder + "/../x", open_mode::write).error().code() == errc::not_supported);
    CHECK(far.rename(path + ".old", "/tmp/x").error().code() == errc::not_supported);
    std::filesystem::create_symlink("/etc/passwd", there.folder + "/link");
    CHECK(far.open(there.folder + "/link", open_mode::read).error().code() ==
          errc::permission_denied);
    CHECK(far.remove_tree(there.folder + "/gpt"));
    CHECK_FALSE(std::filesystem::exists(there.folder + "/gpt"));
}

TEST_CASE(
    "locks of a process that is gone are free, and a folder that is not served any more says so",
    "[net]") {
    served there;
    const auto path = there.folder + "/lock";
    {
        net::far_disk far(there.at, options().secret, there.folder);
        const auto held = far.open(path, open_mode::append).value();
        REQUIRE(held->try_lock() == file_lock::held);
    }
    net::far_disk far(there.at, options().secret, there.folder);
    const auto held = far.open(path, open_mode::append).value();
    CHECK(held->try_lock() == file_lock::held);
    there.end();
    const auto lost = held->size();
    REQUIRE_FALSE(lost);
    CHECK_FALSE(lost.error().text().empty());
    CHECK_FALSE(far.list(there.folder));
}

TEST_CASE("nobody reaches a folder with another secret", "[net]") {
    served there;
    std::optional<error> no;
    try {
        const net::far_disk far(there.at, options("test", '8').secret, there.folder);
    } catch (const error& why) {
        no = why;
    }
    REQUIRE(no);
    CHECK(no->code() == errc::permission_denied);
    CHECK(no->text().find(there.folder) != std::string::npos);
}

} // namespace far_disk_test
