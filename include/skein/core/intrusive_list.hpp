// SPDX-License-Identifier: Apache-2.0
#pragma once
// A doubly linked list whose links live inside its elements: no allocation, O(1) removal from
// anywhere. Elements derive from list_node<Tag>; a node unlinks itself when it is destroyed.

#include <skein/core/config.hpp>

namespace skein {

template <class T, class Tag>
class intrusive_list;

/// The links of one element in lists of one Tag. Neither copyable nor movable.
template <class Tag>
class list_node {
public:
    list_node() noexcept = default;
    list_node(const list_node&) = delete;
    list_node& operator=(const list_node&) = delete;
    ~list_node() { unlink(); }

    [[nodiscard]] bool is_linked() const noexcept { return next_ != nullptr; }

    /// Leaves its list, if it is in one.
    void unlink() noexcept {
        if (next_ == nullptr) return;
        prev_->next_ = next_;
        next_->prev_ = prev_;
        prev_ = next_ = nullptr;
    }

private:
    template <class, class>
    friend class intrusive_list;
    list_node* prev_ = nullptr;
    list_node* next_ = nullptr;
};

/// A list of T, which derives from list_node<Tag>. Does not own its elements.
template <class T, class Tag>
class intrusive_list {
    using node = list_node<Tag>;

public:
    intrusive_list() noexcept { head_.prev_ = head_.next_ = &head_; }
    intrusive_list(const intrusive_list&) = delete;
    intrusive_list& operator=(const intrusive_list&) = delete;
    ~intrusive_list() {
        while (!empty()) head_.next_->unlink();
        head_.prev_ = head_.next_ = nullptr;
    }

    [[nodiscard]] bool empty() const noexcept { return head_.next_ == &head_; }
    [[nodiscard]] T& front() noexcept { return static_cast<T&>(*head_.next_); }

    /// Appends; the element must not be linked.
    void push_back(T& element) noexcept {
        node& n = element;
        n.prev_ = head_.prev_;
        n.next_ = &head_;
        head_.prev_->next_ = &n;
        head_.prev_ = &n;
    }
    /// Unlinks and returns the first element. The list must not be empty.
    T& pop_front() noexcept {
        T& first = front();
        static_cast<node&>(first).unlink();
        return first;
    }
    /// Moves all elements of other to the end of this list, in order.
    void splice_back(intrusive_list& other) noexcept {
        if (other.empty()) return;
        node* first = other.head_.next_;
        node* last = other.head_.prev_;
        other.head_.prev_ = other.head_.next_ = &other.head_;
        first->prev_ = head_.prev_;
        head_.prev_->next_ = first;
        last->next_ = &head_;
        head_.prev_ = last;
    }
    /// Calls f(element) for each; f must not change the list.
    template <class F>
    void for_each(F f) {
        for (node* n = head_.next_; n != &head_; n = n->next_) f(static_cast<T&>(*n));
    }
    /// The same until f says false; true if all were seen.
    template <class F>
    bool for_each_while(F f) {
        for (node* n = head_.next_; n != &head_; n = n->next_)
            if (!f(static_cast<T&>(*n))) return false;
        return true;
    }

private:
    node head_;
};

} // namespace skein
