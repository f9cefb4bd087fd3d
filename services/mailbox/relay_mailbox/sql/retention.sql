-- name: open_slices
-- Make the partitions of today and the next days
select open_slices_v1(%(days_ahead)s)
