// SPDX-License-Identifier: Apache-2.0
#pragma once
// A value that counts: what is alive, copied and moved. Proves that nothing leaks, is destroyed
// twice or copied on the way. A tally belongs to one test.

#include <skein/core/check.hpp>

#include <utility>

namespace skein_test {

struct tally {
    int alive = 0, made = 0, copied = 0, moved = 0;
};

class counted {
public:
    explicit counted(tally& t, int value = 0) : tally_(&t), value_(value) {
        ++t.alive;
        ++t.made;
    }
    counted(const counted& other) : tally_(other.tally_), value_(other.value_) {
        other.check();
        ++tally_->alive;
        ++tally_->copied;
    }
    counted(counted&& other) noexcept
        : tally_(other.tally_), value_(std::exchange(other.value_, -1)) {
        other.check();
        ++tally_->alive;
        ++tally_->moved;
    }
    counted& operator=(const counted& other) {
        check();
        other.check();
        value_ = other.value_;
        ++tally_->copied;
        return *this;
    }
    counted& operator=(counted&& other) noexcept {
        check();
        other.check();
        value_ = std::exchange(other.value_, -1);
        ++tally_->moved;
        return *this;
    }
    ~counted() {
        check();
        sign_ = dead;
        --tally_->alive;
    }
    [[nodiscard]] int value() const {
        check();
        return value_;
    }

private:
    static constexpr unsigned living = 0x51CE1111, dead = 0xDEADDEAD;
    void check() const {
        SKEIN_CHECK(sign_ == living, "a value is used or destroyed after its end");
    }

    tally* tally_;
    int value_;
    volatile unsigned sign_ = living;
};

} // namespace skein_test
