//! Structs of counters that are added and subtracted field by field.
//!
//! Input: the definition of a struct. This module does not know what is counted.

/// Defines a struct of counters, its sum and its difference.
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $type:ty,)* }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl std::ops::AddAssign for $name {
            #[inline]
            fn add_assign(&mut self, other: $name) {
                $(self.$field += other.$field;)*
            }
        }

        /// What happened between an earlier state of the counters and a later one.
        impl std::ops::Sub for $name {
            type Output = $name;

            #[inline]
            fn sub(self, earlier: $name) -> $name {
                $name { $($field: self.$field - earlier.$field,)* }
            }
        }
    };
}
