MERGE INTO sales t USING source s
ON t.at = s.at AND t.id = s.id AND t.at >= '2024-03-03 00:00Z' AND t.at < '2024-03-04 00:00Z'
WHEN MATCHED AND (t.item, t.price, t.loaded) IS DISTINCT FROM (s.item, s.price, s.loaded) THEN
    UPDATE SET item = s.item, price = s.price, loaded = s.loaded
WHEN NOT MATCHED THEN
    INSERT VALUES (s.at, s.id, s.item, s.price, s.loaded);
DELETE FROM sales t WHERE t.at >= '2024-03-03 00:00Z' AND t.at < '2024-03-04 00:00Z'
    AND NOT EXISTS (SELECT FROM source s WHERE s.at = t.at AND s.id = t.id)
