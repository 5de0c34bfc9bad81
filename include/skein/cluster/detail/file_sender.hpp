// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sends files in pieces, several pieces under way at a time, each read and hashed once.
//
//     file_sender sender([&](run_piece m) { return store.put(std::move(m)); });
//     auto sending = sender.send([...] { return std::make_shared<source_file>(folder, path); });
//     const auto sent = co_await sending;          // its digest and status
//     auto finishing = sender.finish();            // also after an error: nothing is under way then
//     co_await finishing;

#include <skein/cluster/detail/source_file.hpp>
#include <skein/cluster/run_store.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/error.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/task.hpp>
#include <skein/net/offload.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <sys/stat.h>

namespace skein::cluster::detail {

/// Belongs to one loop. finish() must have ended before it is destroyed.
class file_sender {
public:
    using way = std::function<task<void>(run_piece)>;
    using opener = std::function<std::shared_ptr<source_file>()>; ///< blocks
    struct sent {
        sha256_digest digest{};
        struct stat status{};
        std::uint64_t bytes = 0;
    };

    static constexpr std::size_t pieces_under_way = 8;

    ///   told  of each piece that was taken: its bytes
    explicit file_sender(way to, std::function<void(std::size_t)> told = {})
        : to_(std::move(to)), told_(std::move(told)) {}
    file_sender(const file_sender&) = delete;
    file_sender& operator=(const file_sender&) = delete;

    /// The last pieces of the file may still be under way when it returns.
    ///   errors  those of source_file; aborted: it has changed meanwhile; an earlier put()'s
    [[nodiscard]] task<sent> send(opener open) { return send_one(this, std::move(open)); }
    /// Waits for what is under way.
    ///   errors  that of the first piece that was not taken
    [[nodiscard]] task<void> finish() { return finish_all(this); }

private:
    struct piece_read {
        run_piece piece;
        sha256_digest digest{};
    };

    static task<sent> send_one(file_sender* self, opener open) {
        auto opening = net::offload([open = std::move(open)] { return open(); });
        const auto file = co_await opening;
        sent out;
        out.status = file->status();
        out.bytes = file->size();
        run_piece next;
        next.file = next_number();
        next.size = out.bytes;
        auto sending = as_result(send_pieces(self, file, &next, &out.digest));
        const auto done = co_await sending;
        if (done) co_return out;
        if (next.offset != 0 && !next.is_last) { // the other side need not wait for the rest
            next.is_last = true;
            next.bytes.clear();
            co_await self->places_.acquire(pieces_under_way); // it would overtake those under way
            self->places_.release(pieces_under_way);
            auto abandoning = as_result(hand_over(self, std::move(next)));
            (void)co_await abandoning;
        }
        throw done.error();
    }

    /// `next`: what the other side has not had.
    static task<void> send_pieces(file_sender* self, std::shared_ptr<source_file> file,
                                  run_piece* next, sha256_digest* digest) {
        const auto hash = std::make_shared<sha256>();
        while (!next->is_last) {
            auto reading = net::offload([file, hash, piece = *next] {
                piece_read now{piece, {}};
                now.piece.bytes = file->read(piece.offset, most_blob_piece);
                hash->update(now.piece.bytes);
                now.piece.is_last = piece.offset + now.piece.bytes.size() >= piece.size;
                if (!now.piece.is_last) return now;
                file->check_unchanged();
                now.digest = hash->finish();
                now.piece.digest = to_hex(now.digest);
                return now;
            });
            auto now = co_await reading;
            // A small last piece would overtake the others.
            const bool is_alone = now.piece.is_last && now.piece.offset != 0;
            const std::size_t places = is_alone ? pieces_under_way : 1;
            co_await self->places_.acquire(places);
            if (is_alone) self->places_.release(pieces_under_way - 1);
            if (self->failure_) {
                self->places_.release(1);
                throw *self->failure_;
            }
            *digest = now.digest;
            next->offset += now.piece.bytes.size();
            next->is_last = now.piece.is_last;
            self->under_way_.spawn(put(self, std::move(now.piece)));
        }
    }

    /// Several may send over one link.
    [[nodiscard]] static std::uint64_t next_number() noexcept {
        static std::atomic<std::uint64_t> last = 0;
        return ++last;
    }

    /// What the way throws at the call, before there is a task, is thrown at the await as well.
    static task<void> hand_over(file_sender* self, run_piece piece) {
        auto handing = self->to_(std::move(piece));
        co_await handing;
    }

    static task<void> put(file_sender* self, run_piece piece) {
        const auto bytes = piece.bytes.size();
        auto putting = as_result(hand_over(self, std::move(piece)));
        const auto done = co_await putting;
        self->places_.release(1);
        if (!done && !self->failure_) self->failure_ = std::make_unique<error>(done.error());
        if (done && self->told_) self->told_(bytes);
    }

    static task<void> finish_all(file_sender* self) {
        auto joining = self->under_way_.join();
        co_await joining;
        if (self->failure_) throw *self->failure_;
    }

    way to_;
    std::function<void(std::size_t)> told_;
    semaphore places_{pieces_under_way};
    scope under_way_;
    std::unique_ptr<error> failure_;
};

} // namespace skein::cluster::detail
