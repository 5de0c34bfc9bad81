// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pipeline behind row_program, and the actor that makes its rows elsewhere.

#include <skein/core/function.hpp>
#include <skein/data/arena.hpp>
#include <skein/data/detail/row_messages.hpp>
#include <skein/data/pipeline.hpp>
#include <skein/net/offload.hpp>
#include <skein/rt/actor.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::data::detail {

/// What of a pipeline travels: how its source is read, and the operators left of on().
template <class Reader, class Ops>
struct segment {
    Reader reader{};
    Ops ops{};
};

/// "pid@host", as the runtime of this thread knows them.
[[nodiscard]] std::string name_of_this_process();

/// An error of a row, with its sample in front: "sample 17 (cat/1.jpg)".
[[nodiscard]] error error_of_row(std::exception_ptr failure, std::uint64_t sample,
                                 const row_program& program);

/// "sample 17 (cat/1.jpg)".
[[nodiscard]] std::string text_of_sample(std::uint64_t sample, const row_program& program);

/// Makes the rows of a request, one after the other; what a helper does. The rest is type-free.
///   make  writes row `index` of the request to the writer
[[nodiscard]] rows_answer make_rows(
    const rows_request& wanted,
    unique_function<row_fate(std::uint64_t, std::uint64_t, wire::reader&, wire::writer&)> make);

/// Thrown by make() of make_rows: the row cannot be read on this host.
struct not_here {
    std::exception_ptr why;
};

/// The helper's side: lives on another core or host.
template <class Segment>
class row_maker {
public:
    explicit row_maker(Segment plan, int threads)
        : plan_(std::make_shared<const Segment>(std::move(plan))),
          pool_(std::make_shared<net::offload_pool>(static_cast<unsigned>(threads))) {}

    /// "pid@host".
    [[nodiscard]] std::string name() const { return name_of_this_process(); }
    /// Makes rows on a thread of its own: the loop goes on sending meanwhile.
    task<rows_answer> make(rows_request wanted) {
        auto work = [plan = plan_, wanted = std::move(wanted)] { return run(*plan, wanted); };
        duration spent{};
        auto done = net::offload(std::move(work), pool_.get(), &spent);
        auto answer = co_await done;
        answer.nanoseconds = static_cast<std::uint64_t>(spent.count());
        co_return answer;
    }

private:
    static rows_answer run(const Segment& plan, const rows_request& wanted) {
        using place = std::decay_t<decltype(place_in(plan))>;
        return make_rows(wanted, [&](std::uint64_t, std::uint64_t sample, wire::reader& places,
                                     wire::writer& out) {
            place at{};
            wire::decode(places, at).value();
            const row_key key{wanted.seed, wanted.epoch, sample};
            auto row = [&] {
                try {
                    return plan.reader.read(std::as_const(at));
                } catch (...) {
                    throw not_here{std::current_exception()};
                }
            }();
            const auto made = run_operators<0>(plan.ops, key, 0, row);
            if (!made) return row_fate::dropped;
            write_row(out, *made);
            return row_fate::made;
        });
    }
    template <class S>
    static auto place_in(const S&) -> typename S::place;

    std::shared_ptr<const Segment> plan_;
    std::shared_ptr<net::offload_pool> pool_; // last: it ends before what it works on
};

/// A segment with the type of its places.
template <class Source, class Ops>
struct segment_of : segment<reader_type<Source>, Ops> {
    using place = place_type<Source>;
};

/// The rank's side of a helper.
template <class Segment>
class actor_helper final : public row_helper {
public:
    actor_helper(actor_handle<row_maker<Segment>> at, std::string name)
        : at_(std::move(at)), name_(std::move(name)) {}
    task<rows_answer> make(rows_request wanted) override {
        auto answer = at_.template call<&row_maker<Segment>::make>(std::move(wanted));
        co_return co_await answer;
    }
    std::string name() const override { return name_; }

private:
    actor_handle<row_maker<Segment>> at_;
    std::string name_;
};

template <class P>
class typed_program;

template <class Source, class Left, class Right, bool Shipped>
class typed_program<pipeline<Source, Left, Right, Shipped>> final : public row_program {
    using plan_type = pipeline<Source, Left, Right, Shipped>;
    using left_row = row_after<Left, source_row<Source>>;

public:
    explicit typed_program(plan_type plan)
        : plan_(std::move(plan)), reader_(reader_of(plan_.source)),
          source_size_(static_cast<std::uint64_t>(plan_.source.size())),
          size_(plan_.chosen.size(source_size_)), line_(plan_.describe()) {}

    std::uint64_t size() const override { return size_; }
    std::uint64_t sample_at(std::uint64_t seed, std::uint64_t epoch,
                            std::uint64_t place) const override {
        const auto visited = plan_.is_shuffled ? epoch_order(size_, seed, epoch)(place) : place;
        return plan_.chosen.sample(visited, source_size_);
    }
    std::string name_of(std::uint64_t sample) const override {
        using place = place_type<Source>;
        if constexpr (requires(const place& at) {
                          { at.name() } -> std::convertible_to<std::string>;
                      })
            return place_of(plan_.source, sample).name();
        else
            return {};
    }
    std::string step_name(std::uint32_t step) const override {
        if (step == 0) return "its source";
        auto name = operator_name(plan_.left, 0, step - 1);
        return name.empty() ? operator_name(plan_.right, whole_width<Left>, step - 1) : name;
    }
    std::string describe() const override { return line_; }
    bool make(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample,
              cells& out) const override {
        const row_key key{seed, epoch, sample};
        const auto read = reader_.read(place_of(plan_.source, sample));
        const auto left = run_operators<0>(plan_.left, key, 0, read);
        return left && finish_row(key, *left, out);
    }

    helpers wanted() const override { return Shipped ? plan_.where : helpers{}; }

    byte_buffer locate(const std::vector<std::uint64_t>& samples) const override {
        if constexpr (Shipped) {
            wire::writer out;
            for (const auto sample : samples) wire::encode(out, place_of(plan_.source, sample));
            return std::move(out).take();
        } else {
            return {};
        }
    }
    bool finish(wire::reader& from, std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample,
                cells& out) const override {
        if constexpr (Shipped) {
            left_row row{};
            if (!read_row(from, row)) from.status().value();
            return finish_row({seed, epoch, sample}, row, out);
        } else {
            return row_program::finish(from, seed, epoch, sample, out);
        }
    }
    task<std::unique_ptr<row_helper>> make_helper() const override {
        if constexpr (Shipped) {
            using travels = segment_of<Source, Left>;
            travels plan;
            plan.reader = reader_;
            plan.ops = plan_.left;
            actor_options how;
            how.cpus = plan_.where.cpus;
            if (!plan_.where.on.empty()) how.on = label(plan_.where.on);
            auto making = actor<row_maker<travels>>.with(how)(std::move(plan), plan_.where.cpus);
            auto made = co_await making;
            auto asked = made.template call<&row_maker<travels>::name>();
            auto name = co_await asked;
            co_return std::make_unique<actor_helper<travels>>(std::move(made), std::move(name));
        } else {
            auto none = row_program::make_helper();
            co_return co_await none;
        }
    }

private:
    template <class Row>
    bool finish_row(const row_key& key, const Row& left, cells& out) const {
        const auto made = run_operators<0>(plan_.right, key, whole_width<Left>, left);
        if (!made) return false;
        // The cells refer to it: it lives as long as what its handles refer to.
        using last = typename decltype(made)::value_type;
        static_assert(
            std::is_trivially_destructible_v<last>,
            "skein: the last row of a pipeline has fields that a batch can hold: numbers, "
            "enums, std::array, data::array or data::image");
        auto* const kept = new (arena::current().allocate(sizeof(last))) last(*made);
        describe_row(*kept, out);
        return true;
    }

    plan_type plan_;
    reader_type<Source> reader_;
    // As they were at the start: a source that grows meanwhile would change the order of an epoch.
    std::uint64_t source_size_, size_;
    std::string line_;
};

template <class P>
typed_program(P) -> typed_program<P>;

} // namespace skein::data::detail

/// How a segment travels: the fields of its reader and of its operators; code does not.
template <class Source, class Ops>
struct skein::wire::codec<skein::data::detail::segment_of<Source, Ops>> {
    using segment = skein::data::detail::segment_of<Source, Ops>;
    static constexpr const char* schema = "row segment";
    static void encode(writer& to, const segment& s) {
        put(to, s.reader);
        std::apply([&](const auto&... op) { (put(to, op), ...); }, s.ops);
    }
    static skein::result<void> decode(reader& from, segment& into) {
        get(from, into.reader);
        std::apply([&](auto&... op) { (get(from, op), ...); }, into.ops);
        return from.status();
    }

private:
    template <class T>
    static constexpr bool is_stateless =
        std::is_empty_v<T> || requires { requires T::is_stateless; };
    template <class T>
    static void put(writer& to, const T& part) {
        if constexpr (!is_stateless<T>) {
            static_assert(encodable<T>,
                          "skein: what stands left of on() travels to helpers: the source (or its "
                          "reader()) and the operators are plain aggregates of values");
            skein::wire::encode(to, part);
        }
    }
    template <class T>
    static void get(reader& from, T& part) {
        if constexpr (!is_stateless<T>) {
            if (from.ok()) (void)skein::wire::decode(from, part);
        }
    }
};

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/row_program.ipp>
#endif
