"""Small regression tables, the splits that papers share, and what each method reaches on them."""
