// SPDX-License-Identifier: Apache-2.0
#pragma once
// id_map: a small hash table from ids to values, for what is entered and taken out once for each
// call. Everything lies in one array: no allocation and no division for each entry, which is most
// of what std::unordered_map costs here.
//
// Linear probing; an erased entry's place is filled by those behind it, so there are no tombstones.
// Values move when the table changes: a pointer to one lasts until the next entry or erasure.

#include <skein/core/ids.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace skein {

/// A Value that converts to false is none: such a place is free.
template <class Id, class Value>
class id_map {
public:
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    /// nullptr: there is none.
    [[nodiscard]] Value* find(Id id) noexcept {
        if (size_ == 0) return nullptr;
        auto& place = places_[place_of(id)];
        return place.value ? &place.value : nullptr;
    }
    /// Enters it unless there is one already; gives the one that is there.
    Value& enter(Id id, Value value) {
        if (places_.size() < 2 * (size_ + 1)) grow();
        auto& place = places_[place_of(id)];
        if (!place.value) {
            place.id = id;
            place.value = std::move(value);
            ++size_;
        }
        return place.value;
    }
    bool erase(Id id) noexcept {
        if (size_ == 0) return false;
        const auto at = place_of(id);
        if (!places_[at].value) return false;
        // Its end may look in here.
        [[maybe_unused]] const Value gone = std::exchange(places_[at].value, Value{});
        erase_at(at);
        return true;
    }
    void clear() noexcept {
        const auto gone = std::exchange(places_, {});
        size_ = 0;
    }
    /// of(id, value): true if it goes. Must not change the table.
    template <class F>
    void erase_if(F&& of) {
        // From a free place on, as those that are filled again come from behind.
        std::size_t begin = 0;
        while (begin < places_.size() && places_[begin].value) ++begin;
        for (std::size_t n = places_.size(), i = 1; i < n;) {
            const auto at = (begin + i) & (n - 1);
            auto& place = places_[at];
            if (place.value && of(std::as_const(place.id), place.value))
                erase_at(at);
            else
                ++i;
        }
    }
    /// f(id, value), in no order that means anything, but the same in every run. Must not change
    /// the table.
    template <class F>
    void for_each(F&& f) {
        for (auto& place : places_)
            if (place.value) f(std::as_const(place.id), place.value);
    }

private:
    struct entry {
        Id id;
        Value value{};
    };

    static std::uint64_t bits_of(std::uint64_t id) noexcept { return id; }
    static std::uint64_t bits_of(const unique_number& id) noexcept {
        return id.number ^ std::rotl(id.incarnation, 32);
    }
    /// Neighbours are told apart by multiplication: the upper bits of the product say where.
    [[nodiscard]] std::size_t home_of(Id id) const noexcept {
        return static_cast<std::size_t>((bits_of(id.value()) * 0x9e3779b97f4a7c15) >> shift_);
    }
    /// Where it is, or the free place where it would be. There is one: half of them are free.
    [[nodiscard]] std::size_t place_of(Id id) const noexcept {
        const entry* const places = places_.data();
        auto at = home_of(id);
        while (places[at].value && places[at].id != id) at = (at + 1) & mask_;
        return at;
    }
    void erase_at(std::size_t hole) noexcept {
        const auto mask = places_.size() - 1;
        places_[hole].value = Value{};
        --size_;
        for (auto at = (hole + 1) & mask; places_[at].value; at = (at + 1) & mask) {
            // It stays if its home lies behind the hole, else it could not be found any more.
            if (((at - home_of(places_[at].id)) & mask) < ((at - hole) & mask)) continue;
            places_[hole] = std::exchange(places_[at], entry{});
            hole = at;
        }
    }
    void grow() {
        auto old = std::exchange(places_,
                                 std::vector<entry>(std::max<std::size_t>(16, 2 * places_.size())));
        shift_ = 64 - std::countr_zero(places_.size());
        mask_ = places_.size() - 1;
        for (auto& one : old)
            if (one.value) places_[place_of(one.id)] = std::move(one);
    }

    std::vector<entry> places_;
    std::size_t size_ = 0;
    std::size_t mask_ = 0; ///< of places_, whose own size takes a division to know
    int shift_ = 63;
};

} // namespace skein
