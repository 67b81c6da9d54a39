-- First and Later labels of US utility grants, without touching any text: a few cents where grants.sql costs dollars.
--
-- Parameters, all DATE and inclusive: @start_date, @end_date bound the grant dates; @train_start, @train_end,
-- @test_2015a_start, @test_2015a_end, @test_2015b_start, @test_2015b_end are the splits' windows (the paper's:
-- 2006-01-01 2014-12-31, 2015-01-01 2015-06-30, 2015-07-01 2015-12-31). In the console: More, Query settings.
--
-- The rule, equal to pipeline/relabel.py: distinct full codes with white space removed, a duplicate being first or
-- inventive if any copy is; the first-listed code is the one flagged first (of several: inventive, then the
-- smallest); its subclass is `first`, and the subclasses of all other full codes are `later`, which may repeat it.
-- Without a code flagged first there is no order: `first` is NULL and `later` empty.
WITH
  _utility AS (
    SELECT
      publication_number,
      SAFE_CAST(
        CONCAT(
          SUBSTR(CAST(grant_date AS STRING), 1, 4), '-',
          SUBSTR(CAST(grant_date AS STRING), 5, 2), '-',
          SUBSTR(CAST(grant_date AS STRING), 7, 2)
        ) AS DATE
      ) AS granted,
      ARRAY(
        SELECT AS STRUCT
          symbol.code AS code,
          LOGICAL_OR(symbol.first) AS first,
          LOGICAL_OR(symbol.inventive) AS inventive
        FROM (
          SELECT
            REGEXP_REPLACE(listed.code, r'[\t-\r\x1c-\x1f\x{85}\p{Z}]', '') AS code,
            IFNULL(listed.first, FALSE) AS first,
            IFNULL(listed.inventive, FALSE) AS inventive
          FROM UNNEST(cpc) AS listed
        ) AS symbol
        WHERE symbol.code <> ''
        GROUP BY symbol.code
      ) AS codes
    FROM `patents-public-data.patents.publications`
    WHERE country_code = 'US'
      AND kind_code IN ('B1', 'B2')
      AND application_kind = 'A'
  ),
  _listed AS (
    SELECT
      publication_number,
      granted,
      codes,
      (
        SELECT symbol.code
        FROM UNNEST(codes) AS symbol
        WHERE symbol.first
        ORDER BY symbol.inventive DESC, symbol.code
        LIMIT 1
      ) AS listed
    FROM _utility
    WHERE granted BETWEEN @start_date AND @end_date
  )
SELECT
  publication_number,
  granted AS grant_date,
  CASE
    WHEN granted BETWEEN @train_start AND @train_end THEN 'train'
    WHEN granted BETWEEN @test_2015a_start AND @test_2015a_end THEN 'test_2015a'
    WHEN granted BETWEEN @test_2015b_start AND @test_2015b_end THEN 'test_2015b'
  END AS split,
  SUBSTR(listed, 1, 4) AS first,
  ARRAY(
    SELECT DISTINCT SUBSTR(symbol.code, 1, 4) AS subclass
    FROM UNNEST(codes) AS symbol
    WHERE symbol.code <> listed
    ORDER BY subclass
  ) AS later
FROM _listed
