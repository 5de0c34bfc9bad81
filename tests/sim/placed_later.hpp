// SPDX-License-Identifier: Apache-2.0
#pragma once
// Simulated children that wait for a place, as leases of a cluster do: somebody has it, gives it,
// wants it back, and wants it no more.
//
//     placed_later places(w, children);        // where they run in the end
//     places.ask_back();                       // one that has a place
//     places.undo();                           // all that were asked back
//     places.close();                          // after those that it gave

#include "sim/scenario.hpp"

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/proc/children.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace elastic_world {

class placed_later final : public skein::proc::children {
    struct place {
        std::uint64_t number = 0;
        skein::proc::child_options how;
        std::string name;
        skein::proc::place_listener news;
        std::unique_ptr<skein::proc::child> process;
        std::optional<skein::proc::child_end> end;
        skein::event over, changed;
        bool is_given = false, is_killed = false, is_asked = false;
    };
    using place_ptr = std::shared_ptr<place>;

public:
    placed_later(skein::sim::world& w, skein::proc::children& on) : w_(w), on_(on) {}

    [[nodiscard]] bool are_placed_later() const noexcept override { return true; }
    skein::task<std::unique_ptr<skein::proc::child>> start(
        skein::proc::child_options how) override {
        auto p = std::make_shared<place>();
        p->number = ++last_;
        p->name = how.name;
        p->news = std::exchange(how.on_place, {});
        p->how = std::move(how);
        all_[p->number] = p;
        tasks_.spawn(live(this, p));
        co_return std::make_unique<child>(p);
    }
    /// Places come at once from now on.
    void calm() { is_calm_ = true; }
    void ask_back() {
        for (auto& [number, p] : all_) {
            if (!p->is_given || p->end || p->is_asked || w_.chance(0.5)) continue;
            p->is_asked = true;
            return p->news({skein::proc::place_news::kind::asked_back, "its node is drained"});
        }
    }
    void undo() {
        for (auto& [number, p] : all_)
            if (p->is_given && !p->end && std::exchange(p->is_asked, false))
                p->news({skein::proc::place_news::kind::not_asked_back, ""});
    }
    skein::task<void> end_all() {
        tasks_.cancel();
        auto ended = skein::as_result(skein::shield(tasks_.join()));
        (void)co_await ended;
    }

private:
    class child final : public skein::proc::child {
    public:
        explicit child(place_ptr of) : of_(std::move(of)) {}
        ~child() override { end(); }
        const std::string& name() const noexcept override { return of_->name; }
        std::int64_t pid() const noexcept override { return 0; } // of another host
        bool running() const noexcept override { return !of_->end; }
        skein::task<skein::proc::child_end> ended() override {
            const auto of = of_;
            auto waiting = of->over.wait();
            co_await waiting;
            co_return *of->end;
        }
        void signal(int number) noexcept override {
            if (of_->process) of_->process->signal(number);
        }
        void kill() noexcept override { end(); }
        skein::proc::process_usage usage() override { return {}; }
        std::unique_ptr<skein::net::stream> take_stream() override { return nullptr; }
        skein::task<std::size_t> read_output(bool, std::span<std::byte>) override { co_return 0; }

    private:
        void end() noexcept {
            of_->is_killed = true;
            of_->changed.set();
            if (of_->process) of_->process->kill();
        }
        place_ptr of_;
    };

    static skein::task<void> live(placed_later* self, place_ptr p) {
        auto& w = self->w_;
        using kind = skein::proc::place_news::kind;
        if (!self->is_calm_ && w.chance(0.5)) {
            if (w.chance(0.5)) p->news({kind::waits, "others have the nodes"});
            auto waiting = p->changed.wait_for(std::chrono::milliseconds(w.below(2000)));
            (void)co_await waiting;
        }
        skein::proc::child_end end;
        try {
            if (p->is_killed) throw skein::error(skein::errc::cancelled, "it was not started yet");
            p->is_given = true;
            p->news({kind::given, "workers"});
            auto starting = self->on_.start(std::move(p->how));
            p->process = co_await starting;
            if (p->is_killed) p->process->kill();
            auto ending = p->process->ended();
            end = co_await ending;
        } catch (const skein::error& why) {
            end.lost = why.text();
            end.was_asked = p->is_killed;
            end.is_lasting = why.code() == skein::errc::not_found ||
                             why.code() == skein::errc::permission_denied;
        }
        p->end = std::move(end);
        p->over.set();
        self->all_.erase(p->number);
    }

    skein::sim::world& w_;
    skein::proc::children& on_;
    std::map<std::uint64_t, place_ptr> all_;
    std::uint64_t last_ = 0;
    bool is_calm_ = false;
    skein::scope tasks_;
};

} // namespace elastic_world
